// A job's log: its end as it grows, or all of it searched, of any attempt.

import { fresh, h, say } from "../dom.js";
import { select } from "../components/form.js";
import { count, some } from "../components/format.js";
import { ask, key, save } from "../server/http.js";
import { fileLink, trouble } from "../components/parts.js";

const TAIL = 40_000; // bytes of the log that are shown
const MOST = 1000; // lines that a search shows
const PAUSE = 250; // milliseconds after the last letter

/** A card; `taken(starts)` when a worker has taken the job: the attempt and the time of each start; `tail()` when it may have written more. */
export function logOf(id) {
  const url = `jobs/${id}/logs`;
  const lines = h("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Log, last lines" });
  const field = h("input", { type: "search", id: fresh("log"), placeholder: "Text to find", autocomplete: "off" });
  const attempt = select([["", "Latest"]], { id: fresh("attempt") });
  const which = h("div", { hidden: true }, h("label", { for: attempt.id }, "Attempt"), attempt);
  const told = h("p", { class: "muted", role: "status" });
  const problem = h("div");
  const element = h("details", { class: "card", ontoggle: () => element.open && show() }, h("summary", {}, "Log"),
    h("form", { class: "filters", role: "search", "aria-label": "Search the log", onsubmit: (event) => (event.preventDefault(), show()) },
      h("div", {}, h("label", { for: field.id }, "Search"), field), which),
    told, problem, lines, h("p", {}, fileLink(url, `${id}.txt`, { saving: save, keyed: Boolean(key.get()) })));
  let timer;
  let turn = 0;
  let shown = ""; // the attempt whose lines are there
  let kept = []; // the starts of which there are logs, as the first and the last of some in a row

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(show, PAUSE);
  });
  attempt.addEventListener("change", show);

  async function show() {
    const own = (turn += 1);
    const words = field.value.trim();
    const asked = new URLSearchParams({ ...(attempt.value && { start: attempt.value }), ...(!words && { tail: TAIL }) });
    try {
      const answer = await ask(`${url}?${asked}`);
      const text = await answer.text();
      if (own !== turn) return;
      problem.replaceChildren();
      shown = attempt.value;
      kept = answer.headers.get("Log-Starts")?.split(", ").map((row) => row.split("-").map(Number)) ?? kept;
      offer();
      if (words) find(text, words);
      else end(text);
    } catch (error) {
      if (own !== turn) return;
      if (shown !== attempt.value) [told, lines].forEach((one) => say(one, "")); // else the lines that are there stay
      const gone = error.status === 404 && attempt.value !== "";
      if (gone) attempt.selectedOptions[0].disabled = true;
      const said = trouble(error, gone ? null : show);
      if (problem.textContent !== said.textContent) problem.replaceChildren(said);
    }
  }

  /** The logs that there are, and those of starts that are newer than these; where there is but one, nothing is chosen. */
  function offer() {
    const starts = [...attempt.options].slice(1);
    const newest = kept.at(-1)?.at(-1) ?? 0;
    for (const option of starts) option.hidden = option.disabled = option.value <= newest && !kept.some(([first, last = first]) => first <= option.value && option.value <= last);
    which.hidden = !attempt.value && starts.filter((option) => !option.hidden).length < 2;
  }

  function end(text) {
    const was = lines.getAttribute("aria-label");
    lines.setAttribute("aria-label", "Log, last lines");
    const low = was !== lines.getAttribute("aria-label") || lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 30;
    say(told, "");
    say(lines, text || "Nothing has been written yet.");
    if (low) lines.scrollTop = lines.scrollHeight;
  }

  /** The lines in which it occurs, in any case, each with its number. */
  function find(text, words) {
    const wanted = words.toLowerCase();
    const all = text.split("\n");
    const found = all.map((line, place) => [place + 1, line]).filter(([, line]) => line.toLowerCase().includes(wanted));
    lines.setAttribute("aria-label", `Log, lines with ${words}`);
    say(told, `${count(found.length)} of ${some(all.length, "line")}${found.length > MOST ? `; the last ${count(MOST)} are shown` : ""}`);
    lines.replaceChildren(...found.slice(-MOST).map(([number, line]) => h("span", { class: "found" }, h("span", { class: "number" }, number), ...marked(line, wanted), "\n")));
  }

  return {
    element,
    tail: () => element.open && !field.value.trim() && !attempt.value && show(),
    /** Every start has its log, by its number; attempts are fewer, and begin at one again when a job is resumed. */
    taken(starts) {
      for (const [number, when] of starts.slice(attempt.options.length - 1)) {
        attempt.append(h("option", { value: attempt.options.length }, `${number}, ${when}`));
      }
      offer();
    },
    stop: () => clearTimeout(timer),
  };
}

function marked(line, wanted) {
  const parts = [];
  const lower = line.toLowerCase();
  let from = 0;
  // A letter may have another length in lower case: then nothing is marked rather than the wrong part.
  for (let at = lower.length === line.length ? lower.indexOf(wanted) : -1; at >= 0; at = lower.indexOf(wanted, from)) {
    parts.push(line.slice(from, at), h("mark", {}, line.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...parts, line.slice(from)];
}
