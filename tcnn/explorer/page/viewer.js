// The attention viewer: click a place of a picture, and see what every head of every layer attends to from there.
// Where the maps come from it does not know: a server, or a network that runs in this page.

import { h, s, say } from "./dom.js";
import { drawHead, drawPicture, strength } from "./maps.js";
import { number, percent } from "./numbers.js";

export const PARTS = {
  combined: ["Combined", "what the head really uses: its gate mixes content and position"],
  content: ["Content", "where queries and keys match"],
  positional: ["Position", "where the head looks whatever is there"],
};

/** What a colour means: weights of all maps on one scale, with a mark where attention is that looks everywhere alike. */
function scale(own, uniform) {
  const [width, bar] = [300, 12];
  const at = (weight) => 8 + (width - 16) * strength(weight, 1, own);
  const marks = own ? [[0, "0"], [1, "the map’s largest"]] : [0, 0.01, 0.1, 0.25, 0.5, 1].map((weight) => [weight, percent(weight, 0)]);
  const words = own ? "Colour: weight beside the largest of the same map. Maps cannot be compared." : `Colour: weight of a pixel, the same in all maps. ▲ uniform attention, ${percent(uniform, 1)}.`;
  return [s("svg", { viewBox: `0 0 ${width} 34`, role: "img", "aria-label": words },
    s("defs", {}, s("linearGradient", { id: "heat" }, s("stop", { offset: "0", class: "none" }), s("stop", { offset: "1", class: "most" }))),
    s("rect", { x: 8, y: 0, width: width - 16, height: bar, fill: "url(#heat)", class: "bar-of" }),
    marks.map(([weight, word]) => s("text", { x: at(weight), y: 30, "text-anchor": weight === 1 ? "end" : weight ? "middle" : "start" }, word)),
    !own && s("path", { class: "uniform", d: `M${at(uniform)} ${bar - 4}l-4 8h8z` })),
  h("p", { class: "hint" }, words)];
}

/** A share of the picture's side, kept inside of it. */
const inside = (value) => Math.max(0, Math.min(0.9999, value));

/**
 * A viewer. `place` [y, x] in shares and `part` are what it begins with, `wanted` {layer, head} by name and number from
 * 1; `controls` stand below the picture; `changed()` is called when something else is seen, `failed(error, again)` when
 * the maps cannot be had.
 *
 * Returns its `element`, its `state`, `busy(text)`, and `show(image, ask)`: `image` is {picture: URL, says, truth, layers},
 * `ask(place)` gives the layers' maps at a place.
 */
export function viewer({ place = [0.5, 0.5], part = "combined", wanted = {}, controls = [], changed = () => {}, failed }) {
  const state = { image: null, picture: null, ask: null, place, part: Object.hasOwn(PARTS, part) ? part : "combined", chosen: null, answer: null, asking: false, again: false };

  const canvas = h("canvas", { class: "picture", width: "448", height: "448" });
  const stage = h("div", {
    class: "stage", tabindex: "0", role: "application", "aria-label": "The picture. Arrow keys move the place that asks; clicking chooses one.",
    "aria-describedby": "place",
  }, canvas);
  const reading = h("p", { id: "place", class: "reading", "aria-live": "polite" });
  const says = h("p", { class: "hint says" });
  const waiting = h("p", { class: "loading", role: "status" });
  const key = h("div", { class: "key-to" });
  const own = h("input", { type: "checkbox", id: "own-scale" });
  own.addEventListener("change", drawAll);
  const layers = h("div", { class: "layers" });
  const meaning = h("p", { class: "hint" });

  const radios = Object.entries(PARTS).map(([value, [word]]) => {
    const radio = h("input", { type: "radio", name: "part", value, id: `part-${value}`, checked: value === state.part });
    radio.addEventListener("change", () => {
      state.part = value;
      drawAll();
    });
    return [radio, h("label", { for: `part-${value}` }, word)];
  });

  const element = h("div", { class: "explorer" },
    h("section", { class: "card", "aria-label": "Picture" },
      stage, reading, says, waiting,
      h("fieldset", { class: "segments" }, h("legend", {}, "Show"), radios), meaning, key,
      h("div", { class: "field tick" }, own, h("label", { for: "own-scale" }, "Every map on its own scale")),
      controls),
    layers);

  /** Say what is waited for, or nothing. */
  function busy(text) {
    say(waiting, text);
    if (text) stage.setAttribute("aria-busy", "true");
    else stage.removeAttribute("aria-busy");
  }

  async function show(image, ask) {
    const picture = new Image();
    picture.src = image.picture;
    await picture.decode();
    Object.assign(state, { image, picture, ask, answer: null });
    say(says, [image.truth && `This is: ${image.truth}.`,
      image.says.length > 0 && `The model says: ${image.says.map((one) => `${one.label} ${percent(one.share)}`).join(", ")}.`].filter(Boolean).join(" "));
    layers.replaceChildren(...image.layers.map(layerCard));
    state.chosen ??= first(image.layers);
    if (state.chosen.layer >= image.layers.length) state.chosen = { layer: 0, head: null };
    await look();
  }

  /** The layer and head that were wanted. */
  function first(all) {
    const layer = Math.max(0, all.findIndex((one) => one.name === wanted.layer));
    const head = Number(wanted.head) - 1;
    return { layer, head: Number.isInteger(head) && head >= 0 && head < all[layer].heads ? head : null };
  }

  /** Ask about the place; while an answer is awaited only the newest place is remembered. */
  async function look() {
    if (!state.image) return;
    if (state.asking) {
      state.again = true;
      return;
    }
    state.asking = true;
    try {
      do {
        state.again = false;
        state.answer = { layers: await state.ask(state.place) };
        drawAll();
      } while (state.again);
    } catch (error) {
      failed(error, look);
    } finally {
      state.asking = false;
    }
  }

  function layerCard(layer, at) {
    const columns = layer.kernel ? layer.kernel[1] : Math.ceil(Math.sqrt(layer.heads));
    const [rows, width] = layer.size;
    const [left, right, top, bottom] = layer.padding;
    const heads = h("div", { class: "heads" }, Array.from({ length: layer.heads }, (_, head) => {
      const tile = h("button", { type: "button", class: "tile", "aria-pressed": "false" }, h("canvas", { width: "132", height: "132" }), h("span", { class: "peak" }), h("span", { class: "gate" }));
      tile.addEventListener("click", () => {
        const same = state.chosen.layer === at && state.chosen.head === head;
        state.chosen = { layer: at, head: same ? null : head };
        drawAll();
      });
      return tile;
    }));
    heads.style.setProperty("--columns", columns);
    return h("section", { class: "card layer", "data-layer": layer.name },
      h("h2", {}, h("code", {}, layer.name)),
      h("p", { class: "hint" }, `${layer.heads} heads${layer.kernel ? `, as on the ${layer.kernel.join("×")} kernel` : ""} · ${rows - top - bottom}×${width - left - right} pixels${left + right + top + bottom ? " and a border" : ""} · τ ${number(layer.temperature)} · uniform would be ${percent(1 / (rows * width), 1)}`),
      heads);
  }

  function drawAll() {
    say(meaning, `${PARTS[state.part][0]}: ${PARTS[state.part][1]}.`);
    if (!state.answer) return;
    state.answer.layers.forEach((layer, at) => {
      const tiles = layers.children[at].querySelectorAll(".tile");
      tiles.forEach((tile, head) => {
        const { peak, row, column } = drawHead(tile.querySelector("canvas"), layer, head, state.part, state.picture, own.checked);
        const gate = layer.gate ? layer.gate[head] : null;
        say(tile.querySelector(".peak"), percent(peak, 0));
        say(tile.querySelector(".gate"), gate === null ? "" : `gate ${number(gate, 2)}`);
        tile.setAttribute("aria-label", `Head ${head + 1}: most at row ${row}, column ${column} of the map, ${percent(peak, 1)}${gate === null ? "" : `, gate ${number(gate, 2)}`}. Show it on the picture.`);
        tile.setAttribute("aria-pressed", String(state.chosen.layer === at && state.chosen.head === head));
      });
    });
    const layer = state.answer.layers[state.chosen.layer];
    drawPicture(canvas, layer, state.chosen.head, state.part, state.picture, own.checked);
    key.replaceChildren(...scale(own.checked, 1 / (layer.size[0] * layer.size[1])));
    const known = state.image.layers[state.chosen.layer];
    const [i, j] = layer.query.map((at, axis) => (at - known.first[axis]) / known.stride[axis]);
    say(reading, `Asking: row ${i + 1} of ${known.queries[0]}, column ${j + 1} of ${known.queries[1]} of ${layer.name}${state.chosen.head === null ? "" : `; over the picture: head ${state.chosen.head + 1}`}.`);
    changed();
  }

  function pointed(event) {
    const box = canvas.getBoundingClientRect();
    return [inside((event.clientY - box.top) / box.height), inside((event.clientX - box.left) / box.width)];
  }

  let dragging = false;
  stage.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    dragging = true;
    stage.setPointerCapture(event.pointerId);
    state.place = pointed(event);
    look();
  });
  stage.addEventListener("pointermove", (event) => {
    if (!dragging) return;
    state.place = pointed(event);
    look();
  });
  for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, () => (dragging = false));

  /** One query of the chosen layer further. */
  stage.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !state.answer) return;
    event.preventDefault();
    const layer = state.answer.layers[state.chosen.layer];
    const known = state.image.layers[state.chosen.layer];
    const before = [layer.padding[2], layer.padding[0]];
    const after = [layer.padding[3], layer.padding[1]];
    // From the place, not from the answer: keys may be faster than what answers.
    state.place = [0, 1].map((axis) => {
      const length = layer.size[axis] - before[axis] - after[axis];
      const pixel = before[axis] + Math.min(length - 1, Math.floor(state.place[axis] * length));
      const now = Math.round((pixel - known.first[axis]) / known.stride[axis]);
      const next = Math.max(0, Math.min(known.queries[axis] - 1, now + step[axis]));
      return inside((known.first[axis] + next * known.stride[axis] - before[axis] + 0.5) / length);
    });
    look();
  });

  return { element, state, busy, show };
}
