// A line chart in SVG: axes with round numbers, the values under the pointer or the arrow keys, a legend that shows and
// hides, and files of what is shown.

import { fresh, h, s, say } from "./dom.js";
import { count, NONE } from "./numbers.js";
import { ascending, closest, extent, nearest, needed, pieces } from "./points.js";
import { csvOf, handOver, pngOf, svgOf } from "./saving.js";
import { scale, written } from "./scale.js";

const HEIGHT = 210;
const LETTER = 7.6; // pixels that a digit of an axis takes
const LEAPS = 20; // with Shift an arrow key goes so large a part of the way
const MARGIN = { left: 30, right: 12, top: 10, bottom: 40 };
export const COLOURS = 7; // classes c0 … c6 of the style sheet: Okabe and Ito's, which colour-blind people tell apart

/** `axis` names the horizontal one, `at` a place of it. `series`: [{name, points: [[x, y], …], thin}]; a y that is not finite is told as such, and a gap of the line. `from`, `to` are what the axis must reach; a `share` is at most one. */
export function chart({ title, unit, format, from, to, share, axis = "optimizer steps", at: word = "step" }) {
  const drawing = s("svg", { height: HEIGHT, role: "img" });
  const where = h("span");
  const legend = h("ul", { class: "legend" });
  const reading = h("div", { class: "reading", "aria-live": "off" }, where, legend);
  const name = fresh("chart");
  const files = h("div", { class: "save" }, Object.keys(SAVED).map((kind) =>
    h("button", { type: "button", "aria-label": `Save ${title} as ${kind}`, title: `Save as ${kind}`, onclick: () => save(kind) }, kind)));
  const element = h("figure", { class: "chart", tabindex: "0", "aria-labelledby": name, role: "group" },
    h("figcaption", {}, h("span", { id: name }, title, unit && h("span", { class: "muted" }, ` (${unit})`)), files),
    drawing, reading);
  const hidden = new Set();
  let all = [];
  let shown = [];
  let places = []; // all x of what is shown
  let place = null;
  let scales = null;
  let width = 0;

  function draw(series) {
    // Charts of the same runs have the same colours, whatever there is to draw of each.
    all = series.map((one, number) => ({ ...one, points: ascending(one.points), colour: `c${number % COLOURS}` })).filter((one) => one.points.some(([, y]) => Number.isFinite(y)));
    choose();
  }

  /** What is shown, of all. */
  function choose() {
    shown = all.filter((one) => !hidden.has(one.name));
    places = [...new Set(shown.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
    marks();
    plot();
  }

  /** The legend is made anew only where there are other names, so that nobody's focus is lost. */
  function marks() {
    const names = all.map((one) => one.name);
    if (JSON.stringify(names) !== legend.dataset.names) {
      legend.dataset.names = JSON.stringify(names);
      legend.replaceChildren(...all.map((one) => {
        const said = h("bdi", {}, h("b"), h("span")); // no name turns the direction of its number
        const key = h("button", { type: "button", class: one.colour, title: "Show or hide", onclick: () => toggle(one.name) }, h("bdi", {}, one.name), " ", said);
        return h("li", {}, key);
      }));
    }
    [...legend.children].forEach((item, number) => item.firstChild.setAttribute("aria-pressed", String(!hidden.has(all[number].name))));
  }

  /** All of them come back when the last one goes. */
  function toggle(one) {
    if (!hidden.delete(one)) hidden.add(one);
    if (all.every((each) => hidden.has(each.name))) hidden.clear();
    choose();
  }

  /** In real pixels, so that letters are as large as all others, however wide the chart is. */
  function plot() {
    if (!shown.length || !width) return;
    drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const ys = [...extent(shown), from, to].filter((one) => one !== undefined);
    const y = scale(ys, HEIGHT - MARGIN.bottom, MARGIN.top, { most: 4, share });
    const label = written(y.ticks, format);
    const left = Math.max(MARGIN.left, ...y.ticks.map((tick) => 12 + LETTER * label(tick).length));
    const x = scale([places[0], places.at(-1)], left, width - MARGIN.right, { whole: true, most: Math.max(2, Math.floor((width - left) / 80)) });
    scales = { x, y };
    drawing.setAttribute("aria-label", summary());
    drawing.replaceChildren(
      ...y.ticks.map((tick) => s("g", { class: "grid" },
        s("line", { x1: left, x2: width - MARGIN.right, y1: y.at(tick), y2: y.at(tick) }),
        s("text", { x: left - 7, y: y.at(tick) + 4, "text-anchor": "end" }, label(tick)))),
      ...x.ticks.map((tick) => s("text", { class: "tick", x: Math.min(x.at(tick), width - LETTER * count(tick).length / 2), y: HEIGHT - 24, "text-anchor": "middle" }, count(tick))),
      s("text", { class: "axis", x: width - MARGIN.right, y: HEIGHT - 6, "text-anchor": "end" }, axis),
      ...shown.map((one) => line(one, x, y)),
      s("g", { class: "cursor" }));
    read(place);
  }

  function summary() {
    return `${title}: ${shown.map((one) => `${one.name} from ${told(one.points[0])} to ${told(one.points.at(-1))}`).join("; ")}`;
  }

  function told([, y]) {
    return Number.isFinite(y) ? format(y) : "not finite";
  }

  /** What every series says at a place, or where it was measured nearest to it; null is the newest of each, or the last place. */
  function read(at) {
    if (!scales) return;
    const newest = at === null && word === "step";
    const x = at ?? places.at(-1);
    const cursor = drawing.querySelector(".cursor");
    cursor.replaceChildren();
    if (at !== null) cursor.append(s("line", { x1: scales.x.at(x), x2: scales.x.at(x), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    all.forEach((one, number) => {
      const [value, elsewhere] = legend.children[number].firstChild.lastChild.children;
      const off = hidden.has(one.name);
      const found = off ? null : newest ? one.points.at(-1) : nearest(one.points, x);
      if (found && at !== null && Number.isFinite(found[1])) cursor.append(s("circle", { class: one.colour, cx: scales.x.at(found[0]), cy: scales.y.at(found[1]), r: 3.5 }));
      say(value, found ? told(found) : off ? "" : NONE);
      say(elsewhere, found && !newest && found[0] !== x ? ` at ${word} ${count(found[0])}` : "");
    });
    say(where, newest ? "latest" : `${word} ${count(x)}`);
    // The room that it has once taken it keeps, and is no anchor of the page: what stands below does not move with the pointer.
    if (at !== null) reading.style.minHeight = `${reading.getBoundingClientRect().height}px`;
  }

  async function save(kind) {
    const file = `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").toLowerCase()}.${kind.toLowerCase()}`;
    const colours = shown.map((one) => ({ name: one.name, colour: getComputedStyle(drawing.querySelector(`.line.${one.colour}`)).color }));
    const [content, type] = await SAVED[kind](shown, axis, () => svgOf(drawing, unit ? `${title} (${unit})` : title, colours));
    handOver(file, content, type);
  }

  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now === width) return;
    width = now;
    reading.style.minHeight = "";
    plot();
  }).observe(element);

  drawing.addEventListener("pointermove", (event) => {
    if (!scales) return;
    const box = drawing.getBoundingClientRect();
    const x = scales.x.from(((event.clientX - box.left) / box.width) * width);
    place = places[closest(places, x)];
    read(place);
  });
  drawing.addEventListener("pointerleave", () => read((place = null)));
  element.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !scales) return;
    event.preventDefault();
    reading.setAttribute("aria-live", "polite");
    const now = closest(places, place ?? places.at(-1)) + by * (event.shiftKey ? Math.ceil(places.length / LEAPS) : 1);
    place = places[Math.max(0, Math.min(places.length - 1, now))];
    read(place);
  });
  element.addEventListener("focusout", ({ relatedTarget }) => {
    if (element.contains(relatedTarget)) return;
    reading.setAttribute("aria-live", "off");
    read((place = null));
  });
  return { element, draw };
}

/** What each kind of file is made of. */
const SAVED = {
  PNG: async (series, axis, svg) => [await pngOf(svg()), "image/png"],
  SVG: (series, axis, svg) => [svg(), "image/svg+xml"],
  CSV: (series, axis) => [csvOf(series, axis), "text/csv"],
};

function line(one, x, y) {
  const parts = pieces(one.points);
  const path = parts.flatMap((part) => needed(part, (px) => Math.round(x.at(px))).map(([px, py], at) => `${at ? "L" : "M"}${x.at(px).toFixed(1)} ${y.at(py).toFixed(1)}`)).join("");
  const dots = one.points.length < 12 ? parts.flat() : parts.filter((part) => part.length === 1).flat(); // what is alone is no line
  return s("g", { class: `line ${one.colour}${one.thin ? " thin" : ""}` },
    s("path", { d: path, fill: "none" }),
    dots.map(([px, py]) => s("circle", { cx: x.at(px), cy: y.at(py), r: 2.5 })));
}
