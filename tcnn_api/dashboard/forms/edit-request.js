// A job of which there is no form, edited as the request that it was.

import { h, isolated } from "../dom.js";
import { field, keeping, posting, sending } from "../components/form.js";
import { deed, title } from "../components/format.js";
import { get } from "../server/http.js";
import { parsed } from "../server/json.js";
import { trouble } from "../components/parts.js";

export function show(main, kind, from) {
  document.title = "Edit and run again · tcnn";
  const leaving = new AbortController();
  const words = h("textarea", { rows: "16", spellcheck: "false" });
  const summary = h("div", { class: "notice bad", role: "alert", hidden: true });
  const about = h("div", {}, h("p", { class: "loading" }, "Loading the job…"));
  const button = h("button", { type: "submit", class: "main" }, "Run again");
  const form = h("form", { class: "submit", novalidate: true },
    h("section", { class: "card" }, field("body", "Request", words, { wide: true, hint: "JSON, as the API takes it; the API page lists all settings." })),
    summary, h("div", { class: "actions" }, button));
  main.append(h("div", { class: "head" }, h("h1", {}, "Edit and run again")), about, form);

  const kept = keeping(form);
  const send = sending(form, summary, {
    ready: async () => {},
    body() {
      try {
        return parsed(words.value);
      } catch (error) {
        throw Object.assign(new Error(`This is not valid JSON: ${error.message}`), { control: words });
      }
    },
  });
  const posted = posting(leaving.signal);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(button, async (body) => (location.hash = `#/jobs/${(await posted(kind, body)).id}`));
  });

  async function load() {
    try {
      const job = await get(`jobs/${from}`, { signal: leaving.signal });
      about.replaceChildren(h("p", { class: "lead" }, `${isolated(title(job))} · ${deed(job)}`));
      if (!words.value) words.value = JSON.stringify({ ...job.request, ...(job.tags.length && { tags: job.tags }) }, null, 2); // or it was written before
    } catch (error) {
      if (error.name !== "AbortError") about.replaceChildren(trouble(error, error.status === 404 ? null : load));
    }
  }

  if (kept.before) kept.restore(load);
  else load();
  return () => leaving.abort();
}
