// A line chart in SVG: axes with round numbers, a legend, and the values under the pointer or the arrow keys.

import { fresh, h, s, say } from "./dom.js";
import { count } from "./format.js";

const HEIGHT = 210;
const LETTER = 7.6; // pixels that a digit of an axis takes
const MARGIN = { left: 30, right: 12, top: 10, bottom: 40 };
export const COLOURS = 7; // classes c0 … c6 of the style sheet: Okabe and Ito's, which colour-blind people tell apart

/** `axis` names the horizontal one, `at` a place of it. `series`: [{name, points: [[x, y], …], thin}]. `from`, `to` are what the axis must reach. */
export function chart({ title, unit, format, from, to, axis = "optimizer steps", at: word = "step" }) {
  const drawing = s("svg", { height: HEIGHT, role: "img" });
  const where = h("span");
  const legend = h("ul", { class: "legend" });
  const reading = h("div", { class: "reading", "aria-live": "off" }, where, legend);
  const name = fresh("chart");
  const element = h("figure", { class: "chart", tabindex: "0", "aria-labelledby": name, role: "group" },
    h("figcaption", { id: name }, title, unit && h("span", { class: "muted" }, ` (${unit})`)),
    drawing, reading);
  let shown = [];
  let place = null;
  let scales = null;
  let width = 0;

  function draw(series) {
    shown = series.filter((one) => one.points.length);
    plot();
  }

  /** In real pixels, so that letters are as large as all others, however wide the chart is. */
  function plot() {
    if (!shown.length || !width) return;
    drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const xs = shown.flatMap((one) => one.points.map(([x]) => x));
    const ys = shown.flatMap((one) => one.points.map(([, y]) => y));
    if (from !== undefined) ys.push(from);
    if (to !== undefined) ys.push(to);
    const y = scale(ys, HEIGHT - MARGIN.bottom, MARGIN.top, { most: 4 });
    const label = told(y.ticks, format);
    const left = Math.max(MARGIN.left, ...y.ticks.map((tick) => 12 + LETTER * label(tick).length));
    const x = scale(xs, left, width - MARGIN.right, { whole: true, most: Math.max(2, Math.floor((width - left) / 80)) });
    scales = { x, y, all: [...new Set(xs)].sort((a, b) => a - b) };
    drawing.setAttribute("aria-label", summary());
    drawing.replaceChildren(
      ...y.ticks.map((tick) => s("g", { class: "grid" },
        s("line", { x1: left, x2: width - MARGIN.right, y1: y.at(tick), y2: y.at(tick) }),
        s("text", { x: left - 7, y: y.at(tick) + 4, "text-anchor": "end" }, label(tick)))),
      ...x.ticks.map((tick) => s("text", { class: "tick", x: x.at(tick), y: HEIGHT - 24, "text-anchor": "middle" }, count(tick))),
      s("text", { class: "axis", x: width - MARGIN.right, y: HEIGHT - 6, "text-anchor": "end" }, axis),
      ...shown.map((one, number) => line(one, number, x, y)),
      s("g", { class: "cursor" }));
    legend.replaceChildren(...shown.map((one, number) => h("li", { class: `c${number % COLOURS}` }, one.name, " ", h("b"))));
    read(place);
  }

  function summary() {
    return `${title}: ${shown.map((one) => `${one.name} from ${format(one.points[0][1])} to ${format(one.points.at(-1)[1])}`).join("; ")}`;
  }

  /** What all series say at the x nearest to a place; null is the newest. */
  function read(at) {
    if (!scales) return;
    const x = at ?? scales.all.at(-1);
    const cursor = drawing.querySelector(".cursor");
    cursor.replaceChildren();
    if (at !== null) cursor.append(s("line", { x1: scales.x.at(x), x2: scales.x.at(x), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    shown.forEach((one, number) => {
      const nearest = one.points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
      if (at !== null) cursor.append(s("circle", { class: `c${number % COLOURS}`, cx: scales.x.at(nearest[0]), cy: scales.y.at(nearest[1]), r: 3.5 }));
      say(legend.children[number].lastChild, format(nearest[1]));
    });
    say(where, at === null && word === "step" ? "latest" : `${word} ${count(x)}`);
  }

  new ResizeObserver(([entry]) => {
    width = Math.round(entry.contentRect.width);
    plot();
  }).observe(element);

  drawing.addEventListener("pointermove", (event) => {
    if (!scales) return;
    const box = drawing.getBoundingClientRect();
    const x = scales.x.from(((event.clientX - box.left) / box.width) * width);
    place = scales.all.reduce((best, one) => (Math.abs(one - x) < Math.abs(best - x) ? one : best));
    read(place);
  });
  drawing.addEventListener("pointerleave", () => read((place = null)));
  element.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !scales) return;
    event.preventDefault();
    reading.setAttribute("aria-live", "polite");
    const now = scales.all.indexOf(place ?? scales.all.at(-1));
    place = scales.all[Math.max(0, Math.min(scales.all.length - 1, now + by))];
    read(place);
  });
  element.addEventListener("blur", () => (reading.setAttribute("aria-live", "off"), read((place = null))));
  return { element, draw };
}

/** A way to write round numbers in as many digits as they have. */
function told(ticks, format) {
  let digits = 2;
  while (digits < 9 && ticks.some((tick) => Number(tick.toPrecision(digits)) !== tick)) digits += 1;
  return (tick) => format(tick, digits);
}

function line(one, number, x, y) {
  const path = one.points.map(([px, py], at) => `${at ? "L" : "M"}${x.at(px).toFixed(1)} ${y.at(py).toFixed(1)}`).join("");
  const alone = one.points.length < 12;
  return s("g", { class: `line c${number % COLOURS}${one.thin ? " thin" : ""}` },
    s("path", { d: path, fill: "none" }),
    alone && one.points.map(([px, py]) => s("circle", { cx: x.at(px), cy: y.at(py), r: 2.5 })));
}

/** A linear scale that begins and ends at round numbers, from pixels `a` to `b`. */
function scale(values, a, b, { whole = false, most = 4 } = {}) {
  let [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
  if (low === high) {
    const room = whole ? 1 : Math.abs(low) * 0.1 || 0.5;
    low -= room;
    high += room;
  }
  // What moves by less than a hundredth stands still: it gets labels that can be read, not all of its digits.
  const least = whole ? 0 : 1e-2 * Math.max(Math.abs(low), Math.abs(high));
  if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  if (whole) step = Math.max(1, step);
  const first = whole ? Math.ceil(low / step) * step : Math.floor(low / step + 1e-9) * step;
  const last = whole ? high : Math.ceil(high / step - 1e-9) * step;
  const ticks = [];
  for (let tick = first; tick <= last + step * 1e-6; tick += step) ticks.push(Number(tick.toPrecision(12)));
  const [start, end] = whole ? [low, high] : [first, last];
  const at = (value) => a + ((value - start) / (end - start)) * (b - a);
  const back = (pixel) => start + ((pixel - a) / (b - a)) * (end - start);
  return { at, from: back, ticks };
}
