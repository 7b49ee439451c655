// The attention viewer: click a place of a picture, and see what every head of every layer attends to from there.
// Where the maps come from it does not know: a server, or a network that runs in this page.

import { h, isolated, s, say } from "./dom.js";
import { ORDERS, headCards } from "./heads.js";
import { drawPicture, nearest, strength } from "./maps.js";
import { number, percent } from "./numbers.js";

export const PARTS = {
  combined: ["Combined", "what the head uses: its gate mixes content and position"],
  content: ["Content", "where queries and keys match"],
  positional: ["Position", "where the head looks regardless of content"],
};

/** What a colour means: weights of all maps on one scale, with a mark where attention is that looks everywhere alike. */
function scale(own, uniform) {
  const [width, bar] = [300, 12];
  const at = (weight) => 8 + (width - 16) * strength(weight, 1, own);
  const marks = own ? [[0, "0"], [1, "the map’s largest"]] : [0, 0.01, 0.1, 0.25, 0.5, 1].map((weight) => [weight, percent(weight, 0)]);
  const words = own ? "Colour: weight relative to the largest in the same map; maps cannot be compared." : `Colour: weight of a pixel, on one scale for all maps. ▲ uniform attention, ${percent(uniform, 1)}.`;
  return [s("svg", { viewBox: `0 0 ${width} 34`, role: "img", "aria-label": words },
    s("defs", {}, s("linearGradient", { id: "heat" }, s("stop", { offset: "0", class: "none" }), s("stop", { offset: "1", class: "most" }))),
    s("rect", { x: 8, y: 0, width: width - 16, height: bar, fill: "url(#heat)", class: "bar-of" }),
    marks.map(([weight, word]) => s("text", { x: at(weight), y: 30, "text-anchor": weight === 1 ? "end" : weight ? "middle" : "start" }, word)),
    !own && s("path", { class: "uniform", d: `M${at(uniform)} ${bar - 4}l-4 8h8z` })),
  h("p", { class: "hint" }, words)];
}

function heard(says) {
  return says?.length ? `The model says: ${says.map((one) => `${isolated(one.label)} ${percent(one.share)}`).join(", ")}.` : "";
}

/** Have a card end within the window: at the top of the page there is less room for it than when it has scrolled. */
function fit(card) {
  const leaving = new AbortController();
  const sizes = new ResizeObserver(look);

  function look() {
    if (card.isConnected) return card.style.setProperty("--above", `${Math.max(0, Math.round(card.getBoundingClientRect().top))}px`);
    sizes.disconnect();
    leaving.abort();
  }

  sizes.observe(document.body);
  for (const event of ["scroll", "resize"]) addEventListener(event, look, { passive: true, signal: leaving.signal });
}

/** A share of the picture's side, kept inside of it. */
const inside = (value) => Math.max(0, Math.min(0.9999, value));

/**
 * A viewer. `place` [y, x] in shares, `part`, `order`, `own` scale and `circles` are what it begins with, `wanted` {layer,
 * head} by name and number from 1; `controls` stand below the picture; `changed()` is called when something else is seen,
 * `failed(error, again)` when the maps cannot be had.
 *
 * Returns its `element`, its `state`, `busy(text)`, `look()`, which asks anew, and `show(image, ask)`: `image` is {picture:
 * URL, says, truth, layers, notes}, `ask(place)` gives the layers' maps at a place, or {layers, caption, says} of them, and the
 * same of another model as `beside`.
 */
export function viewer({ place = [0.5, 0.5], part = "combined", order = "kernel", own = false, circles = false, wanted = {}, controls = [], changed = () => {}, failed }) {
  const state = {
    image: null, picture: null, ask: null, place, part: Object.hasOwn(PARTS, part) ? part : "combined",
    order: Object.hasOwn(ORDERS, order) ? order : "kernel", own, circles, chosen: null, answer: null, asking: false, again: false,
  };

  const [first, second] = [0, 1].map(() => {
    const canvas = h("canvas", { class: "picture", width: "448", height: "448" });
    const caption = h("figcaption");
    return { canvas, caption, element: h("figure", {}, canvas, caption) };
  });
  second.element.hidden = true;
  const stage = h("div", {
    class: "stage", tabindex: "0", role: "application", "aria-label": "The picture. Click a pixel to choose the query, or move it with the arrow keys.",
    "aria-describedby": "place",
  }, first.element, second.element);
  const reading = h("p", { id: "place", class: "reading", "aria-live": "polite" });
  const says = h("p", { class: "hint says" });
  const waiting = h("p", { class: "loading", role: "status" });
  const key = h("div", { class: "key-to" });
  const [scaled, rings] = [["own", "own-scale"], ["circles", "circles"]].map(([name, id]) => {
    const box = h("input", { type: "checkbox", id, checked: state[name] });
    box.addEventListener("change", () => {
      state[name] = box.checked;
      drawAll();
    });
    return box;
  });
  const orders = h("select", { id: "heads-order" }, Object.entries(ORDERS).map(([value, word]) => h("option", { value, selected: value === state.order }, word)));
  orders.addEventListener("change", () => {
    state.order = orders.value;
    drawAll();
  });
  const cards = headCards((layer, head) => {
    const same = state.chosen.layer === layer && state.chosen.head === head;
    state.chosen = { layer, head: same ? null : head };
    drawAll();
  });
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
      h("div", { class: "field tick" }, scaled, h("label", { for: "own-scale" }, "Every map on its own scale")),
      h("div", { class: "field tick" }, rings, h("label", { for: "circles" }, "Centres, with circles that hold 50 % and 90 % of positional attention")),
      h("div", { class: "source" }, h("label", { for: "heads-order" }, "Heads"), orders),
      controls),
    cards.element);

  fit(element.firstElementChild);

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
    cards.make(image.layers, image.notes);
    state.chosen ??= beginning(image.layers);
    if (state.chosen.layer >= image.layers.length) state.chosen = { layer: 0, head: null };
    await look();
  }

  /** The layer and head that were wanted. */
  function beginning(all) {
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
        const began = performance.now();
        const answer = await state.ask(state.place);
        state.answer = Array.isArray(answer) ? { layers: answer } : answer;
        drawAll();
        performance.measure("tcnn: a place is shown", { start: began });
      } while (state.again);
    } catch (error) {
      failed(error, look);
    } finally {
      state.asking = false;
    }
  }

  function drawAll() {
    say(meaning, `${PARTS[state.part][0]}: ${PARTS[state.part][1]}.`);
    if (!state.answer) return;
    cards.draw(state.answer, { part: state.part, own: state.own, order: state.order, picture: state.picture, ...state.chosen });
    const layer = state.answer.layers[state.chosen.layer];
    rings.disabled = !layer.centres;
    drawFigure(first, layer, state.answer);
    // The same layer of another model, by its name: it may have others, too.
    const { beside } = state.answer;
    const other = beside?.layers.find((one) => one.name === layer.name && one.maps.content.length === layer.maps.content.length);
    second.element.hidden = !other;
    stage.classList.toggle("two", Boolean(other));
    if (other) drawFigure(second, other, beside);
    say(says, [state.image.truth && `True class: ${isolated(state.image.truth)}.`, heard(state.answer.says ?? state.image.says)].filter(Boolean).join(" "));
    key.replaceChildren(...scale(state.own, 1 / (layer.size[0] * layer.size[1])));
    const known = state.image.layers[state.chosen.layer];
    const [i, j] = layer.query.map((at, axis) => (at - known.first[axis]) / known.stride[axis]);
    say(reading, `Query: row ${i + 1} of ${known.queries[0]}, column ${j + 1} of ${known.queries[1]} of ${layer.name}${state.chosen.head === null ? "" : `; over the picture: head ${state.chosen.head + 1}`}.`);
    changed();
  }

  function drawFigure({ canvas, caption }, layer, answer) {
    const { head } = state.chosen;
    const gate = layer.gate?.[head] ?? null; // none of the mean of all heads, nor of a content head
    drawPicture(canvas, layer, head, state.part, state.picture, { own: state.own, circles: state.circles && Boolean(layer.centres) });
    const facts = [answer.caption, answer.caption && `τ ${number(layer.temperature)}`, gate !== null && `gate ${number(gate, 2)}`].filter(Boolean);
    say(caption, facts.length ? `${facts.join(", ")}. ${answer.caption ? heard(answer.says) : ""}` : "");
  }

  /** Both pictures are asked alike. */
  function pointed(event) {
    const right = second.element.hidden ? null : second.canvas.getBoundingClientRect();
    const box = right && event.clientX >= right.left && event.clientY >= right.top ? right : first.canvas.getBoundingClientRect();
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
    const now = nearest({ ...layer, ...known }, state.place);
    state.place = [0, 1].map((axis) => {
      const length = layer.size[axis] - before[axis] - after[axis];
      const next = Math.max(0, Math.min(known.queries[axis] - 1, now[axis] + step[axis]));
      return inside((known.first[axis] + next * known.stride[axis] - before[axis] + 0.5) / length);
    });
    look();
  });

  return { element, state, busy, show, look };
}
