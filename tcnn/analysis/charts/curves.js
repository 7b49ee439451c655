// Curves of training: loss, accuracy, temperature, gates and spans against optimizer steps.

import { number, percent } from "./numbers.js";

/** What there is to draw of rows whose values have dotted names, such as `val.top1`: options and series of charts. */
export function described(columns, rows) {
  const steps = rows.filter((row) => row.kind === "train");
  const epochs = rows.filter((row) => row.kind === "epoch");
  const all = [...steps, ...epochs].sort((a, b) => a.updates - b.updates);
  const taus = (name) => points(all.filter((row) => has(row, name)), name); // one kind of rows may have what the other has not
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
    { title: "Temperature τ", format: number, from: 0, series: apart(rows)
      ? [{ name: "positions", points: taus("temperature") }, { name: "gates", points: taus("gate_temperature") }]
      : [{ name: "τ", points: taus("temperature") }] },
    { title: "Gates σ(λ/τ), mean of a layer’s heads of the taps", format: number, from: 0, to: 1, series: layers("gate_mean.") },
    { title: "Spans 1/α, mean of a layer’s heads of the taps", unit: "pixels²", format: number, series: layers("span_mean.") },
  ].filter(({ series }) => series.some((one) => one.points.length));
}

/**
 * A column of some rows against optimizer steps, from the first row on that has it; NaN where a row has no finite value. All that was
 * measured, for a chart thins out only its lines; nothing if none of it can be drawn.
 */
export function points(rows, column) {
  const first = rows.findIndex((row) => has(row, column));
  const all = first < 0 ? [] : rows.slice(first).map((row) => [Number(row.updates), value(row[column]) ?? NaN]);
  return all.some(([, y]) => Number.isFinite(y)) ? all : [];
}

function has(row, column) {
  return row[column] !== undefined && row[column] !== null && row[column] !== "";
}

/** Whether the gates have another τ than the positions in some row; pictures ask the same (`apart` in training.py). */
export function apart(rows) {
  const taus = rows.map((row) => [value(row.gate_temperature), value(row.temperature)]);
  return taus.some(([gate, tau]) => gate !== null && tau !== null && Math.abs(gate - tau) > 1e-6 * Math.max(gate, tau));
}

/** A number, of text too; null where there is none. */
export function value(said) {
  return said === undefined || said === null || said === "" || !Number.isFinite(Number(said)) ? null : Number(said);
}
