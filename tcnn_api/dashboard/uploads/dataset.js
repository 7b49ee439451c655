// One data set: what it is, its classes and splits, what cannot be read, thumbnails, and who uses it.

import { announce, h, isolated, say } from "../dom.js";
import { select } from "../components/form.js";
import { bytes, count, date, number, percent, some } from "../components/format.js";
import { ask, get } from "../server/http.js";
import { busy, refused, sure, trouble } from "../components/parts.js";
import { breakable, path, scrolling } from "../components/scrolling.js";
import { standing } from "../components/tenants.js";
import { usedBy } from "./used-by.js";

const PAGE = 24;
const SPLITS = { train: "Training", val: "Validation", test: "Test", all: "Images" };

export function show(main, id) {
  document.title = "Data set · tcnn";
  const leaving = new AbortController();
  const { signal } = leaving;
  main.append(h("p", { class: "loading" }, "Loading the data set…"));
  const load = () => get(`datasets/${id}`, { signal }).then((one) => {
    document.title = `${one.name} · tcnn`;
    const refusal = h("div", { role: "alert" });
    const why = h("div");
    standing(main, "data set", one.tenant, why);
    main.replaceChildren(
      h("div", { class: "head" }, h("div", {}, h("p", { class: "crumb" }, h("a", { href: "#/data" }, "Data sets"), " / ", h("code", {}, id)), h("h1", {}, one.name), why),
        h("div", { class: "actions changes" },
          h("a", { class: "button main", href: `#/finetune?dataset=${id}` }, "Fine-tune on it"), h("a", { class: "button", href: `#/evaluate?dataset=${id}` }, "Evaluate on it"),
          h("button", { type: "button", class: "danger", onclick: () => remove(one, refusal) }, "Delete"))),
      refusal, facts(one), contents(id, signal), gallery(one, signal), usedBy(id, signal));
  }).catch((error) => {
    if (error.name === "AbortError") return;
    main.replaceChildren(h("h1", {}, error.status === 404 ? "Data set not found" : "The data set cannot be shown"), trouble(error, error.status === 404 ? null : load), h("p", {}, h("a", { href: "#/data" }, "All data sets")));
  });
  load();
  return () => leaving.abort();
}

async function remove(one, refusal) {
  refusal.replaceChildren();
  if (!(await sure({ title: "Delete this data set?", text: `${isolated(one.name)}: its images are deleted. Jobs that used it are kept, with their results. This cannot be undone.` }))) return;
  try {
    await ask(`datasets/${one.id}`, { method: "DELETE" });
    announce("The data set was deleted.");
    location.replace("#/data");
  } catch (error) {
    refused(refusal, error);
  }
}

function facts(one) {
  const splits = Object.entries(one.splits).map(([name, images]) => [SPLITS[name] ?? name, `${count(images)} (${percent(images / one.images, 0)})`]);
  return h("section", { class: "card" }, h("h2", {}, "Details"), h("dl", { class: "facts" }, [
    ["Images", count(one.images)], ["Classes", count(one.classes.length)],
    ...(one.left_out ? [["Left out", `${count(one.left_out)} without the extension of an image`]] : []),
    ...(splits.length ? splits : [["Splits", "None: a part is held out when a model is trained on it"]]),
    ["Archive", bytes(one.size)], ["Uploaded", date(one.created_at)], ["SHA-256", h("code", { title: one.sha256 }, `${one.sha256.slice(0, 12)}…`)],
  ].map(([word, value]) => h("div", {}, h("dt", {}, word), h("dd", {}, value)))));
}

function contents(id, signal) {
  const place = h("div", {}, h("p", { class: "loading", role: "status" }, "Opening the images; the first time takes up to a minute…"));
  const load = () => get(`datasets/${id}/contents`, { signal })
    .then((found) => place.replaceChildren(...[readable(found), measures(found), balance(found)].flat().filter(Boolean)))
    .catch((error) => error.name !== "AbortError" && place.replaceChildren(trouble(error, load)));
  load();
  return h("section", { class: "card", "aria-label": "Classes" }, h("h2", {}, "Classes and images"), place);
}

function readable({ images, checked, unreadable, unreadable_images: named }) {
  const of = checked < images ? `${some(checked, "image")} that were opened, of ${count(images)},` : some(images, "image");
  if (!unreadable) return h("p", { class: "good" }, `✓ All ${of} can be read.`);
  return [
    h("p", { class: "bad" }, `✕ ${count(unreadable)} of the ${of} cannot be read; training skips them.`),
    h("details", {}, h("summary", {}, "Show them"), h("ul", { class: "unreadable" }, named.map(({ file, reason }) => h("li", {}, h("code", {}, path(file)), h("span", { class: "muted" }, reason)))),
      unreadable > named.length && h("p", { class: "muted" }, `and ${count(unreadable - named.length)} more.`)),
  ];
}

function measures({ width, height, formats, mean_bytes: mean }) {
  if (!width) return null;
  const spread = ({ least, median, most }) => (least === most ? `${count(least)} px` : `${count(least)} to ${count(most)} px, median ${count(Math.round(median))}`);
  return h("dl", { class: "facts roomy" }, [["Width", spread(width)], ["Height", spread(height)], ["Average file size", bytes(Math.round(mean))],
    ["Formats", Object.entries(formats).map(([name, images]) => (Object.keys(formats).length > 1 ? `${name} ${count(images)}` : name)).join(", ")],
  ].map(([word, value]) => h("div", {}, h("dt", {}, word), h("dd", {}, value))));
}

/** Every class with its images, as bars by split, and how uneven they are. */
function balance({ classes }) {
  const splits = [...new Set(classes.flatMap((one) => Object.keys(one.images)))];
  const totals = classes.map((one) => Object.values(one.images).reduce((sum, images) => sum + images, 0));
  const [least, most] = [Math.min(...totals), Math.max(...totals)];
  const word = least === most ? `Every class has ${some(most, "image")}.`
    : `The largest class has ${some(most, "image")}, the smallest ${count(least)}${most < 1.1 * least ? "" : `: ${number(most / least, 2)} times as many`}.`;
  return [
    h("p", {}, word),
    splits.length > 1 && h("ul", { class: "legend" }, splits.map((name, place) => h("li", { class: `c${place}` }, h("b", {}, SPLITS[name] ?? name)))),
    scrolling("Images by class", { rows: classes.length },
      h("table", { class: "balance" },
        h("thead", {}, h("tr", {}, ["Class", ...splits.map((name) => SPLITS[name] ?? name)].map((name) => h("th", { scope: "col" }, name)), h("td", {}))),
        h("tbody", {}, classes.map((one) => h("tr", {}, h("th", { scope: "row", class: "long" }, breakable(one.name)),
          splits.map((name) => h("td", {}, count(one.images[name] ?? 0))), h("td", { class: "bars" }, bars(one.images, splits, most))))))),
  ];
}

function bars(images, splits, most) {
  const rail = h("span", { class: "stack", "aria-hidden": "true" });
  splits.forEach((name, place) => {
    const bar = h("span", { class: `c${place}` });
    bar.style.setProperty("--share", (images[name] ?? 0) / most);
    rail.append(bar);
  });
  return rail;
}

function gallery(one, signal) {
  const label = select([["", "All"], ...one.classes.map((name) => [name, name])], { id: "gallery-class" });
  const splits = Object.keys(one.splits);
  const split = select([["", "All"], ...splits.map((name) => [name, SPLITS[name] ?? name])], { id: "gallery-split" });
  const grid = h("ul", { class: "thumbnails", "aria-label": "Images" });
  const words = h("p", { class: "muted", role: "status" }, "Loading images…");
  const problem = h("div");
  const more = h("button", { type: "button", hidden: true, onclick: () => busy(more, () => load(grid.children.length)) }, "More images");
  let turn = 0;

  async function load(start = 0) {
    const own = (turn += 1);
    const asked = new URLSearchParams({ start, limit: PAGE, ...(label.value && { label: label.value }), ...(split.value && { split: split.value }) });
    try {
      const page = await get(`datasets/${one.id}/images?${asked}`, { signal });
      if (own !== turn) return; // another class was chosen meanwhile
      problem.replaceChildren();
      if (!start) grid.replaceChildren();
      grid.append(...page.data.map(thumbnail));
      say(words, `${count(grid.children.length)} of ${some(page.total, "image")}`);
      more.hidden = !page.has_more;
    } catch (error) {
      if (error.name === "AbortError" || own !== turn) return;
      if (!grid.children.length) say(words, "");
      problem.replaceChildren(trouble(error, () => load(start)));
    }
  }

  label.addEventListener("change", () => load());
  split.addEventListener("change", () => load());
  load();
  return h("section", { class: "card", "aria-label": "Images" }, h("h2", {}, "Images"),
    h("form", { class: "filters", "aria-label": "Choose images", onsubmit: (event) => event.preventDefault() },
      h("div", {}, h("label", { for: "gallery-class" }, "Class"), label),
      splits.length > 1 && h("div", {}, h("label", { for: "gallery-split" }, "Split"), split)),
    words, grid, problem, more);
}

function thumbnail({ file, label, split, width, height, thumbnail: source, reason }) {
  const about = [isolated(label), split && (SPLITS[split] ?? split).toLowerCase(), width && `${width}×${height}`].filter(Boolean).join(" · ");
  return h("li", { title: `${isolated(file)} · ${about}` },
    source ? h("img", { src: source, alt: file }) : h("span", { class: "broken" }, "✕ ", reason),
    h("span", { class: "muted" }, label));
}
