// Curves of training: loss, accuracy, temperature, gates and spans against optimizer steps.

import { number, percent } from "./numbers.js";

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

/** A column of some rows against optimizer steps: every point that was measured, for a chart thins out only its lines. */
export function points(rows, column) {
  return rows.map((row) => [Number(row.updates), value(row[column])]).filter(([, y]) => y !== null);
}

/** A number, of text too; null where there is none. */
export function value(said) {
  return said === undefined || said === null || said === "" || !Number.isFinite(Number(said)) ? null : Number(said);
}
