// A card of training: its curves, and the numbers epoch by epoch, from metrics.csv.

import { chart } from "../chart.js";
import { apart, described, value } from "../curves.js";
import { h } from "../dom.js";
import { number, percent } from "../components/format.js";
import { scrolling } from "../components/scrolling.js";

/** Columns of the table: each a word and what it says of an epoch. Gates have one where they have a τ of their own. */
function columns(rows) {
  const of = (name, format) => (row) => format(value(row[name]));
  const loss = (name) => (row) => (row[name] !== undefined && value(row[name]) === null ? "not finite" : number(value(row[name]))); // every epoch has one
  const tau = of("temperature", number);
  return [
    ["Epoch", (row) => String(Number(row.epoch) + 1)],
    ["Training loss", loss("train_loss")], ["Validation loss", loss("val.loss")], ["Top-1", of("val.top1", percent)],
    ...(apart(rows) ? [["τ of positions", tau], ["τ of gates", of("gate_temperature", number)]] : [["τ", tau]]),
    ["Learning rate", of("lr", number)],
  ];
}

export function training() {
  const charts = h("div", { class: "charts" });
  const words = h("tr");
  const rows = h("tbody");
  const element = h("section", { class: "card", hidden: true },
    h("h2", {}, "Training"), charts,
    h("details", {}, h("summary", {}, "Numbers by epoch"),
      scrolling("Epochs", {},
        h("table", {},
          h("thead", {}, words),
          rows))));
  const made = new Map();

  function draw(table) {
    if (!table.rows.length) return;
    element.hidden = false;
    for (const options of described(table.columns, table.rows)) {
      if (!made.has(options.title)) {
        made.set(options.title, chart(options));
        charts.append(made.get(options.title).element);
      }
      made.get(options.title).draw(options.series);
    }
    const epochs = table.rows.filter((row) => row.kind === "epoch");
    const shown = columns(epochs);
    words.replaceChildren(...shown.map(([word]) => h("th", { scope: "col" }, word)));
    rows.replaceChildren(...epochs.map((row) => h("tr", {}, shown.map(([, said], place) => (place ? h("td", {}, said(row)) : h("th", { scope: "row" }, said(row)))))));
  }

  return { element, draw };
}
