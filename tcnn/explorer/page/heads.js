// The heads of every layer as tiles: where each looks, its gate, how far it looks; in the kernel's order, or by either.

import { h, say } from "./dom.js";
import { number, percent, some } from "./numbers.js";
import { distance, drawHead } from "./maps.js";

export const ORDERS = { kernel: "as on the kernel", gate: "by gate, position first", distance: "by distance, farthest first" };

/** Cards of layers; `chosen(layer, head)` is told what was clicked. */
export function headCards(chosen) {
  const element = h("div", { class: "layers" });
  let cards = [];
  let known = [];

  /** New cards for the layers of an image, and below them what is said of those that have none. */
  function make(layers, notes = []) {
    known = layers;
    cards = layers.map((layer, at) => card(layer, at));
    element.replaceChildren(...cards.map((one) => one.element), ...notes.map((note) => h("p", { class: "hint" }, `${note[0].toUpperCase()}${note.slice(1)}.`)));
  }

  function card(layer, at) {
    const columns = layer.kernel ? layer.kernel[1] : Math.ceil(Math.sqrt(layer.heads));
    const [rows, width] = layer.size;
    const [left, right, top, bottom] = layer.padding;
    const tiles = Array.from({ length: layer.heads }, (_, head) => {
      const facts = h("span", { class: "gate" });
      const peak = h("span", { class: "peak" });
      const canvas = h("canvas", { width: "132", height: "132" });
      return { head, canvas, peak, facts, element: h("button", { type: "button", class: "tile", "aria-pressed": "false", "data-head": head + 1, onclick: () => chosen(at, head) }, canvas, peak, facts) };
    });
    const heads = h("div", { class: "heads" }, tiles.map((one) => one.element));
    heads.style.setProperty("--columns", columns);
    const temperature = h("span");
    return { tiles, heads, temperature, order: "", element: h("section", { class: "card layer", "data-layer": layer.name },
      h("h2", {}, h("code", {}, layer.name)),
      h("p", { class: "hint" }, `${some(layer.heads, "head")}${layer.kernel ? `, ${layer.kernel.join("×")} kernel` : ""} · ${rows - top - bottom}×${width - left - right} pixels${left + right + top + bottom ? " and a border" : ""} · τ `, temperature, ` · uniform: ${percent(1 / (rows * width), 1)}`),
      heads) };
  }

  /** What the heads of one answer attend to. */
  function draw(answer, { part, own, order, picture, layer: current, head: pressed }) {
    answer.layers.forEach((layer, at) => {
      const { tiles, temperature } = cards[at];
      say(temperature, number(layer.temperature ?? known[at].temperature));
      const far = tiles.map(({ head }) => distance(layer, head, part));
      for (const { head, canvas, peak, facts, element: tile } of tiles) {
        const found = drawHead(canvas, layer, head, part, picture, own);
        const gate = layer.gate ? layer.gate[head] : null;
        say(peak, percent(found.peak, 0));
        say(facts, [gate === null ? null : `gate ${number(gate, 2)}`, `${number(far[head], 2)} px`].filter(Boolean).join(" · "));
        tile.setAttribute("aria-label", `Head ${head + 1}: peak at row ${found.row}, column ${found.column} of the map, ${percent(found.peak, 1)}${gate === null ? "" : `, gate ${number(gate, 2)}`}, mean distance ${number(far[head], 2)} pixels. Show it on the picture.`);
        tile.setAttribute("aria-pressed", String(current === at && pressed === head));
      }
      arrange(cards[at], sorted(layer, far, order));
    });
  }

  return { element, make, draw };
}

/** The heads of a layer in an order; equal ones as on the kernel. */
function sorted(layer, far, order) {
  const by = { kernel: () => 0, gate: (head) => -(layer.gate?.[head] ?? 0), distance: (head) => -far[head] }[order];
  return Array.from(far.keys()).sort((a, b) => by(a) - by(b) || a - b);
}

/** Tiles are moved only where the order is another one, so that nobody's focus is lost. */
function arrange(card, order) {
  if (card.order === order.join()) return;
  card.order = order.join();
  const focused = document.activeElement;
  card.heads.replaceChildren(...order.map((head) => card.tiles[head].element));
  if (card.heads.contains(focused)) focused.focus({ preventScroll: true });
}
