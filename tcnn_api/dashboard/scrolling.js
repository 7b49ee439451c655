// A table's region: it scrolls where the table is wider or longer than its place, and fades at the edges where more is.

import { h } from "./dom.js";

const ROWS = 20; // of more the first are shown, and the region scrolls

/** Its edges with more behind them, told in `data-more`, by which style.css fades them. */
function mark(region) {
  const { scrollLeft: x, scrollTop: y, scrollWidth, scrollHeight, clientWidth, clientHeight } = region;
  const edges = { left: x > 1, right: x + clientWidth < scrollWidth - 1, top: y > 1, bottom: y + clientHeight < scrollHeight - 1 };
  region.dataset.more = Object.keys(edges).filter((edge) => edges[edge]).join(" ");
}

const sizes = new ResizeObserver((changes) => changes.forEach(({ target }) => mark(target.closest(".scroll"))));

/** A region around a table; `label` is its name to those who do not see it, `rows` how many the table has. */
export function scrolling(label, { rows = 0, class: extra = "", ...attributes }, table) {
  const region = h("div", {
    class: ["scroll", extra, rows > ROWS && "tall"].filter(Boolean).join(" "), tabindex: "0", role: "region", "aria-label": label,
    onscroll: () => mark(region), ...attributes,
  }, table);
  sizes.observe(region);
  sizes.observe(table);
  return region;
}

/** A name that may be broken where its words end, before a browser must break it inside of one. */
export function breakable(name) {
  return String(name).split(/(?<=[_./]|[^-]{4}-)/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));
}
