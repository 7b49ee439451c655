// Runs side by side: a table that is searched, sorted and given columns by the server, a page at a time. Its whole state
// stands in the address.

import { announce, h } from "../dom.js";
import { FIRST, cell, columnsOf, heading, isColumn, sortable } from "../components/columns.js";
import { STATUS, deed, some, title } from "../components/format.js";
import { get } from "../server/http.js";
import { chips, editable } from "../components/labels.js";
import { learn, mentions } from "../components/names.js";
import { badge, beganAfterNothing, trouble } from "../components/parts.js";
import { putRows } from "../components/rows.js";
import { scrolling } from "../components/scrolling.js";
import { tenantFilter } from "../components/tenants.js";
import { rights } from "../server/rights.js";
import { onReturn } from "../server/stream.js";

const FILTERS = ["q", "status", "kind", "tenant", "after"];
const LIMIT = 50;
const EVERY = 5000; // milliseconds between looks
export const MOST = 7; // runs that are compared: a chart has so many colours
const KINDS = { transform: "Convert", finetune: "Fine-tune", evaluate: "Evaluate" };

export function show(main, query) {
  document.title = "Runs · tcnn";
  const state = {
    q: query.get("q") ?? "", status: query.get("status") ?? "", kind: query.get("kind") ?? "", tenant: query.get("tenant") ?? "", tag: query.getAll("tag"),
    sort: query.get("sort") ?? "-created", after: query.get("after") ?? "",
    columns: query.has("columns") ? query.get("columns").split(",").filter(isColumn) : FIRST,
    selected: (query.get("selected") ?? "").split(",").filter((id) => /^job_[0-9a-z]+$/.test(id)),
  };
  let standing = { several: false, tenant: null };
  let plain = FIRST; // the columns of whoever has chosen none
  let jobs = [];
  let rows = new Map();
  let asking = new AbortController();
  let timer;
  let over = false;

  const search = h("input", { type: "search", id: "search", placeholder: "Name, tag, note, model, data set, id", autocomplete: "off" });
  search.value = state.q;
  const tenants = tenantFilter("runs-tenant", state.tenant, (tenant) => change({ tenant, after: "" }));
  const tags = h("div", { class: "chips" });
  const chosen = h("div", { class: "selection", role: "status" });
  const picker = h("details", { class: "picker", ontoggle: () => picker.open && drawPicker() }, h("summary", {}, "Columns"));
  const header = h("tr");
  const body = h("tbody");
  const table = scrolling("Runs", { class: "runs" }, h("table", {}, h("thead", {}, header), body));
  const trailer = h("div", { class: "state" }, h("p", { class: "loading" }, "Loading runs…"));
  const pager = h("nav", { class: "pager", "aria-label": "Pages" });
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Runs"), chosen),
    h("form", { class: "filters", role: "search", "aria-label": "Find runs", onsubmit: (event) => (event.preventDefault(), find()) },
      h("div", { class: "wide" }, h("label", { for: "search" }, "Search"), search),
      choice("Status", "status", Object.entries(STATUS).map(([value, { word }]) => [value, word])),
      choice("Kind", "kind", Object.entries(KINDS)), tenants.element, tags),
    picker, table, trailer, pager);

  let typing;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(find, 250);
  });

  function find() {
    clearTimeout(typing);
    if (search.value !== state.q) change({ q: search.value, after: "" }, "replaceState");
  }

  function choice(label, name, options) {
    const field = h("select", { id: `runs-${name}` }, h("option", { value: "" }, "All"),
      options.map(([value, word]) => h("option", { value, selected: state[name] === value }, word)));
    field.addEventListener("change", () => change({ [name]: field.value, after: "" }));
    return h("div", {}, h("label", { for: `runs-${name}` }, label), field);
  }

  function address(changes = {}) {
    const now = { ...state, ...changes };
    const asked = new URLSearchParams();
    for (const name of FILTERS) if (now[name]) asked.set(name, now[name]);
    if (now.sort !== "-created") asked.set("sort", now.sort);
    for (const tag of now.tag) asked.append("tag", tag);
    if (now.columns.join() !== plain.join()) asked.set("columns", now.columns.join());
    if (now.selected.length) asked.set("selected", now.selected.join());
    return `#/runs?${asked}`;
  }

  /** Another state, in the address, and what the server says of it. What is typed is no step that Back undoes. */
  function change(changes, how = "pushState") {
    Object.assign(state, changes);
    history[how](null, "", address());
    drawFilters();
    return load();
  }

  async function load() {
    clearTimeout(timer);
    asking.abort();
    asking = new AbortController();
    const asked = new URLSearchParams({ limit: LIMIT, results: false, sort: state.sort });
    for (const name of FILTERS) if (state[name]) asked.set(name, state[name]);
    for (const tag of state.tag) asked.append("tag", tag);
    try {
      const page = await get(`jobs?${asked}`, { signal: asking.signal });
      if (over) return;
      trailer.replaceChildren();
      take(page);
    } catch (error) {
      if (error.name === "AbortError" || over) return;
      const said = state.after && error.status === 404 ? beganAfterNothing(address({ after: "" })) : trouble(error.message, load);
      if (trailer.textContent !== said.textContent) trailer.replaceChildren(said); // an alert is read aloud whenever it comes
      if (error.status < 500 && error.status !== 429) return; // an answer that stays; for another key the page is made anew
    }
    timer = setTimeout(later, EVERY);
  }

  /** Somebody who edits, or does not look, is left alone. */
  function later() {
    if (document.hidden || [...rows.values()].some((row) => row.isOpen())) timer = setTimeout(later, EVERY);
    else load();
  }

  function take(page) {
    jobs = page.data;
    tenants.offer(jobs.map((job) => job.tenant));
    draw();
    pager.replaceChildren(
      ...(state.after ? [h("button", { type: "button", onclick: () => change({ after: "" }).then(top) }, "First page")] : []),
      ...(page.next ? [h("button", { type: "button", onclick: () => change({ after: page.next }).then(top) }, "Next page")] : []));
    if (!jobs.length) trailer.replaceChildren(h("p", { class: "empty" }, "No runs match."));
    learn(jobs).then((news) => news && !over && ![...rows.values()].some((row) => row.isOpen()) && draw());
  }

  function top() {
    scrollTo(0, 0);
    announce(some(jobs.length, "run"));
  }

  function draw() {
    table.hidden = !jobs.length;
    const heads = [h("td", {}), ...["name", ...state.columns].map(head)];
    putRows(header, heads.map((made, place) => (header.children[place]?.isEqualNode(made) ? header.children[place] : made)));
    const before = rows;
    rows = new Map(jobs.map((job) => {
      const [old, made] = [before.get(job.id), row(job)];
      if (!old?.element.isEqualNode(made.element)) return [job.id, made];
      old.take(job); // it looks the same: whoever reads it, or is in it, is not disturbed
      return [job.id, old];
    }));
    putRows(body, [...rows.values()].map((one) => one.element));
    if (picker.open && !picker.contains(document.activeElement)) drawPicker();
    drawFilters();
  }

  function head(column) {
    const word = column === "name" ? "Name" : heading(column);
    const by = state.sort.replace(/^-/, "");
    const down = state.sort.startsWith("-");
    if (column !== "name" && !sortable(column, jobs)) return h("th", { scope: "col" }, word);
    const next = by === column ? (down ? column : `-${column}`) : column === "name" ? column : `-${column}`;
    const button = h("button", { type: "button", class: "quiet sorter", "data-column": column, title: column,
      onclick: () => change({ sort: next, after: "" }).then(() => header.querySelector(`[data-column="${column}"]`)?.focus()) },
      word, h("span", { "aria-hidden": "true" }, by === column ? (down ? "\u00a0▼" : "\u00a0▲") : ""));
    return h("th", { scope: "col", "data-row": column, "aria-sort": by === column ? (down ? "descending" : "ascending") : null }, button);
  }

  function row(job) {
    let now = job;
    const saved = (news) => {
      now = { ...now, name: news.name, tags: news.tags, note: news.note };
      jobs = jobs.map((one) => (one.id === now.id ? now : one));
      for (const one of [name, tagged]) one.redraw();
    };
    const current = () => now;
    const name = editable("name", { current, saved, draw: (one) => h("a", { href: `#/jobs/${one.id}`, title: one.note }, title(one)) });
    const tagged = editable("tags", { current, saved, draw: (one) => chips(one, (tag) => !state.tag.includes(tag) && change({ tag: [...state.tag, tag], after: "" })) });
    const tick = h("input", { type: "checkbox", "aria-label": `Select ${title(job)}`, checked: state.selected.includes(job.id),
      onchange: () => select(job.id, tick.checked) });
    const element = h("tr", { "data-row": job.id, class: standing.several && job.tenant !== standing.tenant ? "fixed" : null },
      h("td", {}, tick),
      h("th", { scope: "row" }, h("div", { class: "run" }, h("div", { class: "labels" }, name.element, tagged.element), h("span", { class: "muted" }, badge(job.status), deed(job)))),
      state.columns.map((column) => {
        const { text, tip } = cell(column, job);
        return h("td", { title: tip }, h("span", { class: "value" }, text));
      }));
    return { element, take: (news) => (now = news), isOpen: () => name.isOpen() || tagged.isOpen() };
  }

  function select(id, is) {
    state.selected = is ? [...state.selected, id] : state.selected.filter((one) => one !== id);
    history.replaceState(null, "", address());
    drawFilters();
  }

  function drawFilters() {
    tags.replaceChildren(...state.tag.map((tag) => h("button", { type: "button", class: "tag", "aria-label": `Remove the filter by tag ${tag}`,
      onclick: () => change({ tag: state.tag.filter((one) => one !== tag), after: "" }) }, `${tag} ×`)));
    const many = state.selected.length;
    const one = jobs.find((job) => job.id === state.selected[0]);
    const clones = one && (!standing.several || one.tenant === standing.tenant || !mentions(one.request));
    chosen.replaceChildren(...(!many ? [h("span", { class: "muted" }, "Select runs to compare them.")] : [
      h("span", {}, many > MOST ? `${many} selected; at most ${MOST} can be compared` : `${many} selected`),
      many > 1 && many <= MOST && h("a", { class: "button main", href: `#/compare?jobs=${state.selected.join()}` }, "Compare"),
      many === 1 && clones && h("a", { class: "button changes", href: `#/${one.kind}?from=${one.id}` }, "Clone and edit"),
      h("button", { type: "button", class: "quiet", onclick: () => {
        state.selected = [];
        history.replaceState(null, "", address());
        for (const tick of body.querySelectorAll("input:checked")) tick.checked = false;
        drawFilters();
      } }, "Clear"),
    ].filter(Boolean)));
  }

  function drawPicker() {
    const all = [...new Set([...state.columns, ...columnsOf(jobs)])].filter((name) => name !== "tenant" || standing.several);
    const groups = [["General", (name) => !name.includes(".")], ["Results", (name) => name.startsWith("metrics.")], ["Settings", (name) => name.startsWith("settings.")]];
    picker.replaceChildren(picker.firstElementChild, h("div", { class: "columns card" }, groups.map(([word, own]) =>
      h("fieldset", {}, h("legend", {}, word), all.filter(own).map((name) => {
        const tick = h("input", { type: "checkbox", checked: state.columns.includes(name), onchange: () => {
          state.columns = tick.checked ? [...state.columns, name] : state.columns.filter((one) => one !== name);
          history.replaceState(null, "", address());
          draw();
        } });
        return h("label", { class: "column" }, tick, heading(name));
      })))));
  }

  drawFilters();
  load();
  rights().then((now) => {
    if (over || !now.several) return;
    standing = now;
    plain = ["tenant", ...FIRST];
    if (!query.has("columns")) state.columns = plain;
    draw();
  }, () => {});
  const unwatch = onReturn(() => (clearTimeout(timer), later())); // runs that have ended may have other names
  return () => {
    over = true;
    unwatch();
    clearTimeout(timer);
    clearTimeout(typing);
    asking.abort();
  };
}
