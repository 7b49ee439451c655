// A job of which there is no form, edited as the request that it was.

import { h } from "../dom.js";
import { clear, field, posting, showErrors, wrong } from "../components/form.js";
import { deed, title } from "../components/format.js";
import { get } from "../server/http.js";
import { trouble } from "../components/parts.js";

export function show(main, kind, from) {
  document.title = "Edit and run again · tcnn";
  const leaving = new AbortController();
  const words = h("textarea", { rows: "16", spellcheck: "false" });
  const summary = h("div", { role: "alert" });
  const about = h("p", { class: "lead" });
  const form = h("form", { class: "submit", novalidate: true },
    h("section", { class: "card" }, field("body", "Request", words, { wide: true, hint: "As the API takes it; its page lists all settings." })),
    summary, h("div", { class: "actions" }, h("button", { type: "submit", class: "main" }, "Run again")));
  main.append(h("div", { class: "head" }, h("h1", {}, "Edit and run again")), about, form);
  words.addEventListener("input", () => wrong(words, ""));
  const posted = posting(leaving.signal);

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clear(form);
    summary.replaceChildren();
    let body;
    try {
      body = JSON.parse(words.value);
    } catch (error) {
      wrong(words, `This is no JSON: ${error.message}`);
      words.focus();
      return;
    }
    try {
      location.hash = `#/jobs/${(await posted(kind, body)).id}`;
    } catch (error) {
      if (error.name === "AbortError") return;
      const rest = showErrors(form, error.fields ?? []);
      summary.replaceChildren(trouble(rest.length ? rest.join("; ") : error.message));
    }
  });

  get(`jobs/${from}`, { signal: leaving.signal })
    .then((job) => {
      about.textContent = `${title(job)} · ${deed(job)}`;
      words.value = JSON.stringify(job.request, null, 2);
    })
    .catch((error) => error.name !== "AbortError" && summary.replaceChildren(trouble(error.message)));
  return () => leaving.abort();
}
