// A dialog: links that show one job to whoever has them; made here, listed, revoked.

import { announce, fresh, h, isolated, say } from "../dom.js";
import { copy } from "./copying.js";
import { posting, select } from "../components/form.js";
import { date, title } from "../components/format.js";
import { ask, get } from "../server/http.js";
import { refused, trouble } from "../components/parts.js";

const DAYS = [["1", "a day"], ["7", "a week"], ["30", "a month"], ["365", "a year"]];

export function share(job) {
  const url = `jobs/${job.id}/shares`;
  const days = select(DAYS, { id: fresh("days") });
  days.value = "7";
  const made = h("div");
  const leaving = new AbortController();
  const posted = posting(leaving.signal);
  const list = h("ul", { class: "shares", "aria-label": "Links" });
  const problem = h("div");
  const dialog = h("dialog", { "aria-labelledby": "share-title", class: "sharing" },
    h("h2", { id: "share-title" }, "Share this job"),
    h("p", {}, `Anyone with the link can view ${isolated(title(job))} with its log and files, but nothing else, and cannot change anything. It does not contain your key.`),
    problem,
    h("form", { class: "pair", onsubmit: (event) => (event.preventDefault(), make()) },
      h("div", {}, h("label", { for: days.id }, "Valid for"), days), h("button", { type: "submit", class: "main" }, "Create a link")),
    made, list,
    h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));

  async function make() {
    problem.replaceChildren();
    try {
      let link = await posted(url, { days: Number(days.value) });
      if (!link.page) { // made before, by what was sent then; its secret went with the answer, and nobody can have it
        await ask(`${url}/${link.id}`, { method: "DELETE" });
        link = await posted(url, { days: Number(days.value) });
      }
      const address = new URL(link.page.slice(1), new URL(".", location.href)).href;
      const field = h("input", { type: "text", readonly: true, id: fresh("link"), onfocus: () => field.select() });
      field.value = address;
      const button = h("button", { type: "button", onclick: async () => {
        const done = await copy(address, field);
        say(button, done ? "Copied" : "Select it");
        announce(done ? "The link was copied." : "Copying is not possible here.");
      } }, "Copy");
      made.replaceChildren(h("div", { class: "pair" }, h("div", {}, h("label", { for: field.id }, "The link (shown only once)"), field), button));
      field.focus();
      await draw();
    } catch (error) {
      refused(problem, error);
    }
  }

  async function draw() {
    try {
      const { data } = await get(url);
      list.replaceChildren(...data.map((one) => h("li", {}, h("span", {}, `Created ${date(one.created_at)}, valid until ${date(one.expires_at)}`),
        h("button", { type: "button", class: "danger", "aria-label": `Revoke the link created ${date(one.created_at)}`, onclick: () => revoke(one) }, "Revoke"))));
      problem.replaceChildren();
    } catch (error) {
      problem.replaceChildren(trouble(error, draw));
    }
  }

  async function revoke(one) {
    try {
      await ask(`${url}/${one.id}`, { method: "DELETE" });
      announce("The link was revoked.");
      made.replaceChildren();
      await draw();
      dialog.querySelector(".actions button").focus();
    } catch (error) {
      refused(problem, error);
    }
  }

  dialog.addEventListener("close", () => (leaving.abort(), dialog.remove()));
  document.body.append(dialog);
  dialog.showModal();
  draw();
}
