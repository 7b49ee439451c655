// Models that were uploaded: checkpoints of tcnn's, and weights of CNNs that are to be converted.

import { h } from "../dom.js";
import { bytes, count, date, short } from "../components/format.js";
import { get } from "../server/http.js";
import { beganAfterNothing, trouble } from "../components/parts.js";
import { breakable, scrolling } from "../components/scrolling.js";
import { WEIGHTS, dropZone, modelRoute } from "./uploads.js";

const LIMIT = 50;
const LISTS = {
  checkpoints: { title: "T-CNNs", none: "No checkpoint was uploaded yet; what jobs made stands on their pages.", heads: ["Name", "Model", "Layers", "Parameters", "Classes", "Fine-tuned", "Size", "Uploaded"],
    cells: (one) => [one.base_model, count(one.layers), short(one.parameters), count(one.num_classes), one.trained ? "Yes" : "No"] },
  weights: { title: "Weights of CNNs", none: "None were uploaded yet.", heads: ["Name", "Model", "Tensors", "Numbers", "Size", "Uploaded"],
    cells: (one) => [one.architecture ?? "as you say", count(one.tensors), short(one.parameters)] },
};

export function show(main, query) {
  document.title = "Checkpoints · tcnn";
  const leaving = new AbortController();
  const lists = Object.fromEntries(Object.keys(LISTS).map((kind) => [kind, listing(kind, query.get(kind) ?? "", leaving.signal)]));
  const zone = dropZone({
    label: "Upload models", accept: WEIGHTS, route: modelRoute, done: (made, path) => lists[path].add(made),
    hint: "Drop files here, or choose them: checkpoints that tcnn wrote, or the weights of your own CNN (a state dict of a timm model, as safetensors or by torch.save), which are converted from here.",
  });
  main.append(h("div", { class: "head" }, h("h1", {}, "Checkpoints")), zone.element, ...Object.values(lists).map((one) => one.element));
  return () => leaving.abort();
}

function listing(kind, after, signal) {
  const { title, none, heads, cells } = LISTS[kind];
  const body = h("tbody");
  const table = scrolling(title, { class: "listing", hidden: true },
    h("table", {}, h("thead", {}, h("tr", {}, heads.map((word) => h("th", { scope: "col" }, word)))), body));
  const state = h("div", { class: "state" }, h("p", { class: "loading" }, "Loading…"));
  const pager = h("nav", { class: "pager", "aria-label": `Pages of ${title}` });
  const row = (one) => h("tr", {}, h("th", { scope: "row", class: "long" }, h("a", { href: `#/${kind}/${one.id}` }, breakable(one.name))),
    [...cells(one), bytes(one.size), date(one.created_at)].map((value) => h("td", {}, value)));

  async function load() {
    try {
      const page = await get(`${kind}?${new URLSearchParams({ limit: LIMIT, ...(after && { after }) })}`, { signal });
      body.replaceChildren(...page.data.map(row));
      table.hidden = !page.data.length;
      state.replaceChildren(...(page.data.length ? [] : [h("p", { class: "muted" }, none)]));
      pager.replaceChildren(...[
        after && h("a", { class: "button", href: "#/checkpoints" }, "Newest"),
        page.has_more && h("a", { class: "button", href: `#/checkpoints?${kind}=${page.data.at(-1).id}` }, "Older ones"),
      ].filter(Boolean));
    } catch (error) {
      if (error.name !== "AbortError") state.replaceChildren(after && error.status === 404 ? beganAfterNothing("#/checkpoints") : trouble(error, load));
    }
  }

  load();
  return {
    element: h("section", {}, h("h2", { class: "over" }, title), table, state, pager),
    add: (made) => {
      state.replaceChildren();
      table.hidden = false;
      body.prepend(row(made));
    },
  };
}
