// The charts of a report: their numbers stand beside them as JSON.

import { chart } from "./chart.js";
import { described } from "./curves.js";
import { h } from "./dom.js";
import { watchEdges } from "./edges.js";
import { number, percent } from "./numbers.js";

const FORMATS = { number, percent };

/** Nested values by dotted names. */
function flat(row, prefix = "") {
  return Object.entries(row).flatMap(([name, value]) =>
    value !== null && typeof value === "object" ? flat(value, `${prefix}${name}.`) : [[`${prefix}${name}`, value]]);
}

for (const place of document.querySelectorAll("[data-charts]")) {
  // No name turns the direction of what is read around it.
  const given = JSON.parse(place.querySelector("script").textContent, (_, value) => (typeof value === "string" ? value.replace(/\p{C}/gu, " ") : value));
  const rows = (given.rows ?? []).map((row) => Object.fromEntries(flat(row)));
  const columns = [...new Set(rows.flatMap(Object.keys))];
  const asked = given.charts ? given.charts.map((one) => ({ ...one, format: FORMATS[one.format] })) : described(columns, rows);
  place.replaceChildren(h("div", { class: "charts" }, asked.map((options) => {
    const made = chart(options);
    made.draw(options.series);
    return made.element;
  })));
}

for (const region of document.querySelectorAll(".wide, .picture")) watchEdges(region);
