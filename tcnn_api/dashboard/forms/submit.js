// The page of a form that makes a job: convert a model, or fine-tune what is there; how it is called and queued, and sent.

import { transform } from "./convert-form.js";
import { h } from "../dom.js";
import { finetune } from "./finetune-form.js";
import { field, keeping, posting, put, putAll, read, sending, text, together, whole } from "../components/form.js";
import { get, post } from "../server/http.js";
import { trouble } from "../components/parts.js";
import { planned } from "./plan.js";

const QUEUEING = ["priority", "max_attempts", "max_runtime", "stall_minutes", "depends_on", "webhook"];

export function show(main, kind, query = new URLSearchParams()) {
  const leaving = new AbortController();
  const form = h("form", { class: "submit", novalidate: true });
  const page = kind === "transform" ? transform(query, QUEUEING) : finetune(form, query, leaving.signal);
  const name = kind === "transform" ? "Convert a model" : "Fine-tune a model";
  document.title = `${name} · tcnn`;
  const summary = h("div", { class: "notice bad", role: "alert", hidden: true });
  const button = h("button", { type: "submit", class: "main" }, kind === "transform" ? "Convert" : "Fine-tune");
  const ahead = h("button", { type: "button" }, "What will it take?");
  const answer = h("div", { role: "status" });
  const called = { name: text(), tags: text() };
  const queueing = {
    priority: whole({ placeholder: "0" }),
    max_attempts: whole({ placeholder: "3" }),
    max_runtime: whole({ placeholder: "server default" }),
    stall_minutes: whole({ placeholder: "server default" }),
  };
  form.append(
    ...page.parts,
    h("details", { class: "card" }, h("summary", {}, "Name and queue"), h("div", { class: "fields" },
      field("name", "Name", called.name, { half: true, hint: "By default, the job is named after its model." }),
      field("tags", "Tags", called.tags, { half: true, hint: "Separated by commas." })),
      h("div", { class: "fields" },
      field("priority", "Priority", queueing.priority, { hint: "−100 to 100; higher ones run first." }),
      field("max_attempts", "Attempts", queueing.max_attempts, { hint: "Attempts before the job counts as failed." }),
      field("max_runtime", "Time limit", queueing.max_runtime, { hint: "In seconds; a job that exceeds it is stopped and fails." }),
      field("stall_minutes", "Stall limit", queueing.stall_minutes, { hint: "In minutes without progress; then the attempt is killed and retried." }))),
    summary, answer, h("div", { class: "actions" }, button, ahead),
  );
  const missing = h("div");
  main.append(h("div", { class: "head" }, h("h1", {}, name)), h("p", { class: "lead" }, page.lead), missing, form);

  let rest = {};
  const kept = keeping(form, {
    more: () => ({ rest }),
    changed: () => {
      answer.replaceChildren();
      ahead.hidden = page.trains?.() === false;
    },
  });
  const from = query.get("from");
  if (kept.before) {
    rest = history.state.rest ?? {};
    kept.restore(page.ready);
  } else if (from) edit();

  /** Begin with what an earlier job was asked for; until it is there nothing is written that it would replace, and nothing sent. */
  async function edit() {
    form.hidden = true;
    missing.replaceChildren(h("p", { class: "loading" }, "Loading the job…"));
    try {
      const { request, tags } = await get(`jobs/${from}`, { signal: leaving.signal });
      rest = Object.fromEntries(["depends_on", "webhook"].filter((name) => name in request).map((name) => [name, request[name]]));
      for (const [name, control] of Object.entries(queueing)) control.value = request[name] ?? "";
      called.tags.value = tags.join(", "); // of what belongs together; a name and a note are one job's
      called.tags.closest("details").open ||= tags.length > 0;
      page.fill(request); // at once, also where lists are still to come: whatever is written from now on stays
      missing.replaceChildren();
      kept.keep();
    } catch (error) {
      if (error.name === "AbortError") return;
      missing.replaceChildren(trouble(error, error.status === 404 ? null : edit));
      if (error.passes || error.status >= 500) return;
    }
    form.hidden = false;
  }

  ahead.hidden = page.trains?.() === false;
  const send = sending(form, summary, {
    ready: page.ready,
    body() {
      const queued = {};
      const [body] = together(page.body, () => putAll(queued, queueing));
      Object.assign(body, rest, queued);
      put(body, "name", read(called.name));
      const tags = called.tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
      if (tags.length) body.tags = tags;
      return body;
    },
  });
  const posted = posting(leaving.signal);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(button, async (body) => (location.hash = `#/jobs/${(await posted(kind, body)).id}`));
  });
  ahead.addEventListener("click", () => send(ahead, async (body) => {
    answer.replaceChildren(h("p", { class: "hint" }, "Looking at the model…"));
    try {
      answer.replaceChildren(planned(await post("plan", { [kind]: body }, { signal: leaving.signal })));
    } catch (error) {
      answer.replaceChildren();
      throw error;
    }
  }, `${kind}.`));
  return () => leaving.abort();
}
