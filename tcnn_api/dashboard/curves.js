// Curves of training, from metrics.csv: loss, accuracy, temperature, gates and spans against optimizer steps.

import { h } from "./dom.js";
import { number, percent } from "./format.js";
import { chart } from "./chart.js";

const MOST = 400;

export function curves() {
  const charts = h("div", { class: "charts" });
  const rows = h("tbody");
  const element = h("section", { class: "card", hidden: true },
    h("h2", {}, "Training"), charts,
    h("details", {}, h("summary", {}, "The numbers, epoch by epoch"),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Epochs" },
        h("table", {},
          h("thead", {}, h("tr", {}, ["Epoch", "Training loss", "Validation loss", "Top-1", "τ", "Learning rate"].map((word) => h("th", { scope: "col" }, word)))),
          rows))));
  const made = new Map();

  function set(name, options) {
    if (!options.series.some((one) => one.points.length)) return;
    if (!made.has(name)) {
      made.set(name, chart(options));
      charts.append(made.get(name).element);
    }
    made.get(name).draw(options.series);
  }

  function draw(csv) {
    const table = parse(csv);
    if (!table.rows.length) return;
    element.hidden = false;
    const steps = table.rows.filter((row) => row.kind === "train");
    const epochs = table.rows.filter((row) => row.kind === "epoch");
    set("loss", { title: "Loss", format: number, series: [
      { name: "training, by step", points: points(steps, "loss"), thin: true },
      { name: "training", points: points(epochs, "train_loss") },
      { name: "validation", points: points(epochs, "val.loss") },
    ] });
    set("accuracy", { title: "Accuracy", format: percent, series: [
      { name: "top-1", points: points(epochs, "val.top1") },
      { name: "top-5", points: points(epochs, "val.top5") },
    ] });
    set("temperature", { title: "Temperature τ", format: number, from: 0, series: [
      { name: "τ", points: points([...steps, ...epochs].sort((a, b) => a.updates - b.updates), "temperature") },
    ] });
    const layers = (prefix) => table.columns.filter((name) => name.startsWith(prefix)).map((name) => ({ name: name.slice(prefix.length), points: points(epochs, name) }));
    set("gates", { title: "Gates σ(λ/τ), mean of a layer’s heads", format: number, from: 0, to: 1, series: layers("gate_mean.") });
    set("spans", { title: "Spans 1/α, mean of a layer’s heads", unit: "pixels²", format: number, series: layers("span_mean.") });
    rows.replaceChildren(...epochs.map((row) => h("tr", {},
      h("th", { scope: "row" }, String(Number(row.epoch) + 1)),
      [number(value(row.train_loss)), number(value(row["val.loss"])), percent(value(row["val.top1"])), number(value(row.temperature)), number(value(row.lr))].map((text) => h("td", {}, text)))));
  }

  return { element, draw };
}

/** A column of some rows against optimizer steps. */
export function points(rows, column) {
  return thinned(rows.map((row) => [Number(row.updates), value(row[column])]).filter(([, y]) => y !== null));
}

/** No more points than a chart has pixels: means of neighbours, and the last one as it is. */
function thinned(points) {
  if (points.length <= MOST) return points;
  const group = Math.ceil(points.length / MOST);
  const found = [];
  for (let at = 0; at < points.length - 1; at += group) {
    const some = points.slice(at, Math.min(at + group, points.length - 1));
    found.push([0, 1].map((axis) => some.reduce((sum, point) => sum + point[axis], 0) / some.length));
  }
  return [...found, points.at(-1)];
}

function value(text) {
  return text === undefined || text === "" || !Number.isFinite(Number(text)) ? null : Number(text);
}

/** CSV as Python's csv module writes it: quotes only where they are needed, doubled inside. */
export function parse(text) {
  const lines = [[]];
  const cell = /("(?:[^"]|"")*"|[^,\n]*)(,|\n|$)/g;
  for (let found; (found = cell.exec(text)) && !(found[0] === "" && found.index >= text.length); ) {
    const word = found[1];
    lines.at(-1).push(word.startsWith('"') ? word.slice(1, -1).replaceAll('""', '"') : word);
    if (found[2] === "\n") lines.push([]);
    if (found[2] === "") break;
  }
  const [columns = [], ...rest] = lines.filter((line) => line.length);
  return { columns, rows: rest.filter((line) => line.length === columns.length).map((line) => Object.fromEntries(columns.map((name, place) => [name, line[place]]))) };
}
