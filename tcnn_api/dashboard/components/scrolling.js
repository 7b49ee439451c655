// A table's region: it scrolls where the table is wider or longer than its place, and fades at the edges where more is.

import { h } from "../dom.js";
import { watchEdges } from "../edges.js";

const ROWS = 20; // of more the first are shown, and the region scrolls

/** A region around a table; `label` is its name to those who do not see it, `rows` how many the table has. */
export function scrolling(label, { rows = 0, class: extra = "", ...attributes }, table) {
  const region = h("div", {
    class: ["scroll", extra, rows > ROWS && "tall"].filter(Boolean).join(" "), tabindex: "0", role: "region", "aria-label": label, ...attributes,
  }, table);
  watchEdges(region);
  return region;
}

/** A path, of which every part keeps its direction: a number after a folder's name from right to left would stand before it. */
export function path(file) {
  return file.split("/").flatMap((part, place) => [place ? "/" : null, h("bdi", {}, part)]);
}

/** A name that may be broken where its words end, before a browser must break it inside of one. */
export function breakable(name) {
  return String(name).split(/(?<=[_./]|[^-]{4}-)/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));
}
