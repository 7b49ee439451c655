// Curves of training: loss, accuracy, temperature, gates and spans against optimizer steps.

import { number, percent } from "./numbers.js";

const MOST = 400;

/** What there is to draw of rows whose values have dotted names, such as `val.top1`: options and series of charts. */
export function described(columns, rows) {
  const steps = rows.filter((row) => row.kind === "train");
  const epochs = rows.filter((row) => row.kind === "epoch");
  const layers = (prefix) => columns.filter((name) => name.startsWith(prefix)).map((name) => ({ name: name.slice(prefix.length), points: points(epochs, name) }));
  return [
    { title: "Loss", format: number, series: [
      { name: "training, by step", points: points(steps, "loss"), thin: true },
      { name: "training", points: points(epochs, "train_loss") },
      { name: "validation", points: points(epochs, "val.loss") },
    ] },
    { title: "Accuracy", format: percent, share: true, series: [
      { name: "top-1", points: points(epochs, "val.top1") },
      { name: "top-5", points: points(epochs, "val.top5") },
    ] },
    { title: "Temperature τ", format: number, from: 0, series: [
      { name: "τ", points: points([...steps, ...epochs].sort((a, b) => a.updates - b.updates), "temperature") },
    ] },
    { title: "Gates σ(λ/τ), mean of a layer’s heads", format: number, from: 0, to: 1, series: layers("gate_mean.") },
    { title: "Spans 1/α, mean of a layer’s heads", unit: "pixels²", format: number, series: layers("span_mean.") },
  ].filter(({ series }) => series.some((one) => one.points.length));
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

/** A number, of text too; null where there is none. */
export function value(said) {
  return said === undefined || said === null || said === "" || !Number.isFinite(Number(said)) ? null : Number(said);
}
