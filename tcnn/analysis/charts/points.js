// Points of a series, [[x, y], …] with ascending x: which of them a place is told by, and which of them a line needs. Where y is
// not finite there is a gap.

/** As they are, or sorted where they do not ascend. */
export function ascending(points) {
  return points.every(([x], at) => !at || points[at - 1][0] <= x) ? points : [...points].sort(([a], [b]) => a - b);
}

/** The index of the last of ascending numbers `of(0)` … `of(length - 1)` that is at most `x`; -1 if all are greater. */
function last(length, of, x) {
  let [low, high] = [-1, length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (of(middle) <= x) low = middle;
    else high = middle;
  }
  return low;
}

/** The index of the number that is nearest to `x`, of ascending ones. */
export function closest(numbers, x) {
  const at = last(numbers.length, (one) => numbers[one], x);
  return at < 0 || numbers[at + 1] - x < x - numbers[at] ? at + 1 : at;
}

/** The point that is nearest to `x`; null before the first and after the last, where nothing was measured. */
export function nearest(points, x) {
  const at = last(points.length, (one) => points[one][0], x);
  if (at < 0 || x > points.at(-1)[0]) return null;
  const [before, after] = [points[at], points[at + 1]];
  return after && after[0] - x < x - before[0] ? after : before;
}

/** The pieces of a line, between its gaps. */
export function pieces(points) {
  const found = [];
  points.forEach((point, at) => {
    if (!Number.isFinite(point[1])) return;
    if (at && Number.isFinite(points[at - 1][1])) found.at(-1).push(point);
    else found.push([point]);
  });
  return found;
}

/** First, lowest, highest and last of all points in a `column` of pixels: the line is the same, and its peaks stay. */
export function needed(points, column) {
  const kept = [];
  for (let start = 0, end; start < points.length; start = end) {
    const own = column(points[start][0]);
    let [low, high] = [start, start];
    for (end = start + 1; end < points.length && column(points[end][0]) === own; end += 1) {
      if (points[end][1] < points[low][1]) low = end;
      if (points[end][1] > points[high][1]) high = end;
    }
    for (const at of new Set([start, Math.min(low, high), Math.max(low, high), end - 1])) kept.push(points[at]);
  }
  return kept;
}

/** The least and the greatest value of several series. */
export function extent(series) {
  let [low, high] = [Infinity, -Infinity];
  for (const { points } of series) {
    for (const [, y] of points) {
      if (!Number.isFinite(y)) continue;
      low = Math.min(low, y);
      high = Math.max(high, y);
    }
  }
  return [low, high];
}
