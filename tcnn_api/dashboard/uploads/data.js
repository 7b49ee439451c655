// The data sets: upload some, see what there is, go to one.

import { h } from "../dom.js";
import { bytes, count, date } from "../components/format.js";
import { get } from "../server/http.js";
import { beganAfterNothing, trouble } from "../components/parts.js";
import { breakable, scrolling } from "../components/scrolling.js";
import { ARCHIVES, dropZone } from "./uploads.js";

const LIMIT = 50;

export function show(main, query) {
  document.title = "Data · tcnn";
  const leaving = new AbortController();
  const after = query.get("after") ?? "";
  const body = h("tbody");
  const table = scrolling("Data sets", { class: "listing", hidden: true },
    h("table", {}, h("thead", {}, h("tr", {}, ["Name", "Images", "Classes", "Divided into", "Archive", "Uploaded"].map((word) => h("th", { scope: "col" }, word)))), body));
  const state = h("div", { class: "state" }, h("p", { class: "loading" }, "Loading data sets…"));
  const pager = h("nav", { class: "pager", "aria-label": "Pages" });
  const zone = dropZone({
    label: "Upload images", accept: ARCHIVES, folders: true, route: () => "datasets", done: (made) => (state.replaceChildren(), (table.hidden = false), body.prepend(row(made))),
    hint: "Drop archives (zip or tar) or folders here, or choose them: class folders with images in them, or train/ and val/ with class folders in them.",
  });
  main.append(h("div", { class: "head" }, h("h1", {}, "Data sets")), zone.element, table, state, pager);

  async function load() {
    try {
      const page = await get(`datasets?${new URLSearchParams({ limit: LIMIT, ...(after && { after }) })}`, { signal: leaving.signal });
      body.replaceChildren(...page.data.map(row));
      table.hidden = !page.data.length;
      state.replaceChildren(...(page.data.length ? [] : [h("p", { class: "empty" }, after ? "There are no older data sets." : "None was uploaded yet.")]));
      pager.replaceChildren(...[
        after && h("a", { class: "button", href: "#/data" }, "Newest"),
        page.has_more && h("a", { class: "button", href: `#/data?after=${page.data.at(-1).id}` }, "Older data sets"),
      ].filter(Boolean));
    } catch (error) {
      if (error.name !== "AbortError") state.replaceChildren(after && error.status === 404 ? beganAfterNothing("#/data") : trouble(error, load));
    }
  }

  load();
  return () => leaving.abort();
}

function row(one) {
  const splits = Object.entries(one.splits).map(([name, images]) => `${name} ${count(images)}`).join(", ");
  return h("tr", {}, h("th", { scope: "row", class: "long" }, h("a", { href: `#/data/${one.id}` }, breakable(one.name))),
    h("td", {}, count(one.images)), h("td", {}, count(one.classes.length)), h("td", {}, splits || "–"), h("td", {}, bytes(one.size)), h("td", {}, date(one.created_at)));
}
