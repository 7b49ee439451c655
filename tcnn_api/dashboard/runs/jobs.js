// All jobs, the newest first, a page at a time; those that are shown are live.

import { announce, h, say } from "../dom.js";
import { STATUS, date, deed, since, standing, title } from "../components/format.js";
import { get } from "../server/http.js";
import { learn } from "../components/names.js";
import { badge, bar, beganAfterNothing, setBadge, setBar, trouble } from "../components/parts.js";
import { tenantFilter } from "../components/tenants.js";
import { rights } from "../server/rights.js";
import { follow } from "../server/stream.js";

const LIMIT = 20;
const KINDS = { transform: "Convert", finetune: "Fine-tune", evaluate: "Evaluate" };

export function show(main, query) {
  document.title = "Jobs · tcnn";
  const filters = { status: query.get("status") ?? "", kind: query.get("kind") ?? "", tenant: query.get("tenant") ?? "" };
  const after = query.get("after") ?? "";
  const asked = new URLSearchParams({ limit: LIMIT });
  for (const [name, value] of Object.entries({ ...filters, after })) if (value) asked.set(name, value);

  let several = false; // tenants whose jobs may be among them
  const tenants = tenantFilter("filter-tenant", filters.tenant, (tenant) => go({ ...filters, tenant }, "filter-tenant"));
  const list = h("ul", { class: "jobs", "aria-label": "Jobs" });
  const state = h("div", { class: "state" }, h("p", { class: "loading" }, "Loading jobs…"));
  const pager = h("nav", { class: "pager", "aria-label": "Pages" });
  main.append(
    h("div", { class: "head" },
      h("h1", {}, "Jobs"),
      h("div", { class: "actions" }, h("a", { class: "button main changes", href: "#/transform" }, "Convert a model")),
    ),
    h("form", { class: "filters", "aria-label": "Filter the jobs", onsubmit: (event) => event.preventDefault() },
      choice("Status", "status", filters, Object.entries(STATUS).map(([value, { word }]) => [value, word])),
      choice("Kind", "kind", filters, Object.entries(KINDS)), tenants.element,
    ),
    list, state, pager,
  );

  const rows = new Map();
  let order = [];
  const at = (extra) => `#/?${new URLSearchParams({ ...Object.fromEntries(Object.entries(filters).filter(([, v]) => v)), ...extra })}`;

  function take({ order: now, changed, next }) {
    state.replaceChildren();
    for (const job of changed) {
      const row = rows.get(job.id) ?? make(job, () => several);
      if (rows.has(job.id) && row.status !== job.status) announce(`${title(job)}: ${STATUS[job.status].word}`);
      rows.set(job.id, row);
      row.update(job);
    }
    if (now.join() !== order.join()) {
      // Only what moved is touched, so that the focus stays where it was.
      now.forEach((id, place) => {
        const element = rows.get(id).element;
        if (list.children[place] !== element) list.insertBefore(element, list.children[place] ?? null);
      });
      while (list.children.length > now.length) list.lastElementChild.remove();
      for (const id of rows.keys()) if (!now.includes(id)) rows.delete(id);
      order = now;
    }
    tenants.offer(changed.map((job) => job.tenant));
    learn(changed).then((news) => news && rows.forEach((row) => row.retell()));
    if (!now.length) state.replaceChildren(empty(filters, after));
    const key = String(next);
    if (pager.dataset.key !== key) {
      pager.dataset.key = key;
      pager.replaceChildren();
      if (after) pager.append(h("a", { class: "button", href: at({}) }, "Newest"));
      if (next) pager.append(h("a", { class: "button", href: at({ after: next }) }, "Older jobs"));
    }
  }

  async function poll() {
    const page = await get(`jobs?${asked}`);
    take({ order: page.data.map((job) => job.id), changed: page.data, next: page.next });
  }

  const stop = follow(`jobs?${asked}`, {
    message: (event, data) => event === "jobs" && take(data),
    poll,
    failed: (problem) => {
      const said = trouble(problem.message);
      if (state.firstChild?.textContent !== said.textContent) state.replaceChildren(said, h("p", { class: "muted" }, "Trying again…"));
    },
    refused: (problem) => {
      list.replaceChildren();
      pager.replaceChildren();
      state.replaceChildren(after && problem.status === 404 ? beganAfterNothing(at({})) : trouble(problem.message, () => location.reload()));
    },
  });
  rights().then((now) => (several = now.several) && rows.forEach((row) => row.retell()), () => {});
  const clock = setInterval(() => rows.forEach((row) => row.tick()), 1000);
  return () => (stop(), clearInterval(clock));
}

function choice(label, name, filters, options) {
  const field = h("select", { id: `filter-${name}`, name },
    h("option", { value: "" }, "All"),
    options.map(([value, word]) => h("option", { value, selected: filters[name] === value }, word)),
  );
  field.addEventListener("change", () => go({ ...filters, [name]: field.value }, `filter-${name}`));
  return h("div", {}, h("label", { for: `filter-${name}` }, label), field);
}

function go(filters, id) {
  location.hash = `#/?${new URLSearchParams(Object.fromEntries(Object.entries(filters).filter(([, value]) => value)))}`;
  // The page is made anew: the focus goes back to where it was.
  addEventListener("hashchange", () => setTimeout(() => document.getElementById(id)?.focus()), { once: true });
}

function empty(filters, after) {
  if (after) return h("p", { class: "empty" }, "There are no older jobs.");
  if (Object.values(filters).some(Boolean)) return h("p", { class: "empty" }, "No jobs match. ", h("a", { href: "#/" }, "Show all"));
  return h("div", { class: "empty" },
    h("h2", {}, "Nothing here yet"),
    h("p", {}, "Convert a pretrained CNN into a Transformed CNN that computes the same function, then fine-tune it and look at what its heads attend to."),
    h("p", {}, h("a", { class: "button main changes", href: "#/transform" }, "Convert a model")),
  );
}

/** One job's row: made once, changed in place. */
function make(job, several) {
  const sign = badge(job.status);
  const name = h("span", { class: "name" }, title(job));
  const what = h("span", { class: "muted" });
  const where = h("span", { class: "standing" });
  const progress = bar(`Progress of ${title(job)}`);
  const when = h("time", { class: "when muted", datetime: job.created_at, title: date(job.created_at) });
  const element = h("li", {},
    h("a", { class: "row", href: `#/jobs/${job.id}` },
      sign, h("span", { class: "about" }, name, what), h("span", { class: "how" }, progress, where), when),
  );
  const row = {
    element,
    status: job.status,
    now: job,
    update(now) {
      row.now = now;
      row.status = now.status;
      setBadge(sign, now.status);
      progress.hidden = now.status !== "running";
      if (now.status === "running") setBar(progress, now.progress?.percent);
      row.retell();
      where.classList.toggle("bad", now.status === "failed");
      row.tick();
    },
    retell: () => {
      say(name, title(row.now));
      const told = [several() && `${row.now.tenant} · `, deed(row.now), ...row.now.tags.flatMap((tag) => [" ", h("bdi", {}, `#${tag}`)])].filter(Boolean); // in letters of any direction
      if (what.textContent !== told.map((part) => part.textContent ?? part).join("")) what.replaceChildren(...told);
      say(where, standing(row.now)); // it may wait for a job by name
    },
    tick: () => {
      say(when, since(job.created_at));
      if (row.now.status === "queued") say(where, standing(row.now)); // a next try is counted down to
    },
  };
  return row;
}
