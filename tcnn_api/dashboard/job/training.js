// A card of training: its curves, and the numbers epoch by epoch, from metrics.csv.

import { chart } from "../chart.js";
import { parse } from "../components/csv.js";
import { described, value } from "../curves.js";
import { h } from "../dom.js";
import { number, percent } from "../components/format.js";
import { scrolling } from "../components/scrolling.js";

export function training() {
  const charts = h("div", { class: "charts" });
  const rows = h("tbody");
  const element = h("section", { class: "card", hidden: true },
    h("h2", {}, "Training"), charts,
    h("details", {}, h("summary", {}, "Numbers by epoch"),
      scrolling("Epochs", {},
        h("table", {},
          h("thead", {}, h("tr", {}, ["Epoch", "Training loss", "Validation loss", "Top-1", "τ", "Learning rate"].map((word) => h("th", { scope: "col" }, word)))),
          rows))));
  const made = new Map();

  function draw(csv) {
    const table = parse(csv);
    if (!table.rows.length) return;
    element.hidden = false;
    for (const options of described(table.columns, table.rows)) {
      if (!made.has(options.title)) {
        made.set(options.title, chart(options));
        charts.append(made.get(options.title).element);
      }
      made.get(options.title).draw(options.series);
    }
    rows.replaceChildren(...table.rows.filter((row) => row.kind === "epoch").map((row) => h("tr", {},
      h("th", { scope: "row" }, String(Number(row.epoch) + 1)),
      [number(value(row.train_loss)), number(value(row["val.loss"])), percent(value(row["val.top1"])), number(value(row.temperature)), number(value(row.lr))].map((text) => h("td", {}, text)))));
  }

  return { element, draw };
}
