// Names, tags and notes of jobs, edited where they stand.

import { announce, fresh, h, say } from "../dom.js";
import { title } from "./format.js";
import { renamed } from "./names.js";
import { ask, once, whenBack } from "../server/http.js";

const FIELDS = {
  name: { word: "name", read: (text) => text.trim() || null, write: (job) => job.name ?? "", hint: (job) => title({ ...job, name: null }) },
  tags: { word: "tags", read: (text) => text.split(",").map((one) => one.trim()).filter(Boolean), write: (job) => job.tags.join(", "), hint: () => "separated, by, commas", icon: "#" },
  note: { word: "note", read: (text) => text || null, write: (job) => job.note ?? "", hint: () => "Anything worth remembering", long: true },
};

/**
 * A label of a job, and a button that makes it a field. `draw(job)` is what stands there, `current()` the job as it is
 * now, `saved(job)` hears of the job as the server has it then. Enter keeps what was written, Escape does not.
 */
export function editable(name, { current, draw, saved }) {
  const { word, read, write, hint, long, icon = "✎" } = FIELDS[name];
  const content = h("div", { class: "label-text" });
  const button = h("button", { type: "button", class: "quiet pencil", onclick: open }, h("span", { "aria-hidden": "true" }, icon));
  const element = h("div", { class: `editable of-${name}` }, content, button);

  function redraw() {
    content.replaceChildren(...[draw(current())].flat().filter(Boolean));
    const about = `Edit the ${word} of ${title(current())}`;
    button.setAttribute("aria-label", about);
    button.title = `Edit the ${word}`;
  }

  function open() {
    const id = fresh("label");
    const error = h("span", { class: "error", id: `${id}-error`, role: "alert" });
    const field = h(long ? "textarea" : "input", {
      id, class: "labelling", "aria-label": `The ${word} of ${title(current())}`, placeholder: hint(current()), "aria-describedby": `${id}-error`,
      autocomplete: "off", spellcheck: long ? "true" : "false", ...(long ? { rows: "4" } : { type: "text" }),
    });
    const before = write(current());
    field.value = before;
    let over = false;

    function close() {
      over = true;
      redraw();
      content.classList.remove("unseen");
      const focused = element.contains(document.activeElement);
      element.replaceChildren(content, button);
      if (focused) button.focus();
    }

    async function keep() {
      if (over || field.readOnly) return;
      if (field.value === before) return close(); // though it may be called something else by now, elsewhere
      field.readOnly = true;
      const meant = field.value;
      try {
        const answer = await ask(`jobs/${current().id}`, { method: "PATCH", json: { [name]: read(field.value) }, headers: { "Idempotency-Key": once() } });
        const job = await answer.json();
        await renamed(job);
        saved(job);
        close();
        announce(`The ${word} ${word === "tags" ? "are" : "is"} saved.`);
      } catch (problem) {
        field.readOnly = false;
        field.setAttribute("aria-invalid", "true");
        say(error, problem.fields?.[0]?.message ?? problem.message);
        if (problem.passes) whenBack(() => again(meant));
      }
    }

    /** What was to be kept is, as soon as the server is back, also of a page that was left; what is written further is not kept half. */
    function again(meant) {
      if (over || field.readOnly) return;
      field.removeAttribute("aria-invalid");
      say(error, "");
      if (field.value === meant) keep();
    }

    field.addEventListener("keydown", (event) => {
      if (event.isComposing) return; // it is meant for the input method, which offers letters
      if (event.key === "Escape") close();
      if (event.key === "Enter" && (!long || event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        keep();
      }
    });
    field.addEventListener("blur", () => !over && keep());
    const heading = content.querySelector("h1"); // a page whose name is being edited has one all the same
    if (heading) content.classList.add("unseen");
    element.replaceChildren(...(heading ? [content] : []), field, error);
    field.focus();
    field.select();
  }

  if (current()) redraw();
  return { element, redraw, isOpen: () => !element.contains(button) };
}

/** A job's tags; with `chosen`, each is a button that calls it. */
export function chips(job, chosen) {
  return job.tags.map((tag) => chosen
    ? h("button", { type: "button", class: "tag", title: `Only jobs with the tag ${tag}`, onclick: () => chosen(tag) }, tag)
    : h("span", { class: "tag" }, tag));
}
