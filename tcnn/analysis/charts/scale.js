// A linear scale with few, round, whole labels.

/**
 * It begins and ends at round numbers, from pixels `a` to `b`; `most` labels, of whole numbers if `whole`. What is never
 * negative has no axis below zero, and what is a `share` none above one.
 */
export function scale(values, a, b, { whole = false, most = 4, share = false } = {}) {
  let [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
  const [floor, ceiling] = [low >= 0 && !whole ? 0 : -Infinity, share ? 1 : Infinity];
  if (low === high) {
    const room = whole ? 1 : Math.abs(low) * 0.1 || 0.5;
    low -= room;
    high += room;
  }
  // What moves by less than a hundredth stands still: it gets labels that can be read, not all of its digits.
  const least = whole ? 0 : 1e-2 * Math.max(Math.abs(low), Math.abs(high));
  if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
  [low, high] = [Math.max(low, floor), Math.min(high, ceiling)];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10].map((one) => one * power);
  let step = steps.find((one) => one >= rough * 0.999);
  // One label alone does not say how far the axis goes.
  const labels = (one) => Math.floor(high / one) - Math.ceil(low / one) + 1;
  if (whole) step = Math.max(1, steps.findLast((one) => one <= step && labels(one) > 1) ?? step);
  // Ticks are whole multiples of the step, so that zero is one exactly.
  const first = whole ? Math.ceil(low / step) : Math.floor(low / step + 1e-9);
  const last = whole ? Math.floor(high / step + 1e-6) : Math.ceil(high / step - 1e-9);
  const ticks = Array.from({ length: last - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
  const [start, end] = whole ? [low, high] : [first * step, last * step];
  const at = (value) => a + ((value - start) / (end - start)) * (b - a);
  const back = (pixel) => start + ((pixel - a) / (b - a)) * (end - start);
  return { at, from: back, ticks };
}

/** A way to write round numbers in as many digits as they have. */
export function written(ticks, format) {
  let digits = 2;
  while (digits < 9 && ticks.some((tick) => Number(tick.toPrecision(digits)) !== tick)) digits += 1;
  return (tick) => format(tick, digits);
}
