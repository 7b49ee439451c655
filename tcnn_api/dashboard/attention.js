// The attention explorer: click a place of a picture, and see what every head of every layer attends to from there.

import { h, s, say } from "./dom.js";
import { number, percent, title } from "./format.js";
import { give, given } from "./handover.js";
import { Problem, ask, get } from "./http.js";
import { drawHead, drawPicture, strength, unpack } from "./maps.js";
import { trouble } from "./parts.js";
import { testPicture } from "./picture.js";

const PARTS = {
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

function share(said) {
  const value = Number(said ?? 0.5);
  return value >= 0 && value <= 1 ? Math.min(0.9999, value) : 0.5;
}

export function show(main, id, query) {
  document.title = "Attention · tcnn";
  const url = `jobs/${id}/attention`;
  const leaving = new AbortController();
  const state = { send: null, image: null, picture: null, place: ["y", "x"].map((axis) => share(query.get(axis))), part: Object.hasOwn(PARTS, query.get("part")) ? query.get("part") : "combined", chosen: null, from: {}, answer: null, asking: false, wanted: false, number: Number(query.get("number")) || 0, file: query.get("file") };

  const heading = h("p", { class: "muted" });
  const canvas = h("canvas", { class: "picture", width: "448", height: "448" });
  const stage = h("div", {
    class: "stage", tabindex: "0", role: "application", "aria-label": "The picture. Arrow keys move the place that asks; clicking chooses one.",
    "aria-describedby": "place",
  }, canvas);
  const place = h("p", { id: "place", class: "reading", "aria-live": "polite" });
  const says = h("p", { class: "hint" });
  const waiting = h("p", { class: "loading", role: "status" });
  const problem = h("div");
  const key = h("div", { class: "key-to" });
  const own = h("input", { type: "checkbox", id: "own-scale" });
  own.addEventListener("change", drawAll);
  const layers = h("div", { class: "layers" });
  const meaning = h("p", { class: "hint" });

  const file = h("input", { type: "file", accept: "image/*", id: "attention-file" });
  const sets = h("select", { id: "attention-set" });
  const another = h("button", { type: "button" }, "Another picture");

  const radios = Object.entries(PARTS).map(([value, [word]]) => {
    const radio = h("input", { type: "radio", name: "part", value, id: `part-${value}`, checked: value === state.part });
    radio.addEventListener("change", () => {
      state.part = value;
      drawAll();
    });
    return [radio, h("label", { for: `part-${value}` }, word)];
  });

  main.append(
    h("div", { class: "head" }, h("div", {},
      h("p", { class: "crumb" }, h("a", { href: "#/" }, "Jobs"), " / ", h("a", { href: `#/jobs/${id}` }, h("code", {}, id)), " / attention"),
      h("h1", {}, "What the heads attend to"), heading)),
    problem,
    h("div", { class: "explorer" },
      h("section", { class: "card", "aria-label": "Picture" },
        stage, place, says, waiting,
        h("fieldset", { class: "segments" }, h("legend", {}, "Show"), radios), meaning, key,
        h("div", { class: "field tick" }, own, h("label", { for: "own-scale" }, "Every map on its own scale")),
        h("div", { class: "source" }, h("label", { for: "attention-set" }, "Pictures from"), h("div", { class: "pair" }, sets, another)),
        h("div", { class: "source" }, h("label", { for: "attention-file" }, "Your own picture"), file)),
      layers),
  );

  /** Send a picture; `send` does it again when the server has forgotten it. */
  async function open(send) {
    state.send = send;
    problem.replaceChildren();
    say(waiting, state.image ? "Looking at the picture…" : "Loading the model; the first picture takes some seconds…");
    stage.setAttribute("aria-busy", "true");
    try {
      const found = await send();
      if (leaving.signal.aborted || state.send !== send) return;
      state.image = found;
      state.answer = null;
      state.picture = new Image();
      state.picture.src = found.picture;
      await state.picture.decode();
      say(says, [found.truth && `This is: ${found.truth}.`,
        found.says.length > 0 && `The model says: ${found.says.map((one) => `${one.label} ${percent(one.share)}`).join(", ")}.`].filter(Boolean).join(" "));
      layers.replaceChildren(...found.layers.map(layerCard));
      state.chosen ??= asked(found.layers);
      if (state.chosen.layer >= found.layers.length) state.chosen = { layer: 0, head: null };
      await look();
    } catch (error) {
      fail(error, () => open(send));
    } finally {
      say(waiting, "");
      stage.removeAttribute("aria-busy");
    }
  }

  /** The layer and head that the address names. */
  function asked(all) {
    const layer = Math.max(0, all.findIndex((one) => one.name === query.get("layer")));
    const head = Number(query.get("head")) - 1;
    return { layer, head: Number.isInteger(head) && head >= 0 && head < all[layer].heads ? head : null };
  }

  /** The address says what is seen, so that it can be sent to somebody; at rest, since browsers bear few changes a second. */
  let resting = null;
  function keep() {
    clearTimeout(resting);
    resting = setTimeout(() => {
      const { layer, head } = state.chosen;
      const said = new URLSearchParams({ ...state.from, layer: state.image.layers[layer].name, ...(head !== null && { head: head + 1 }),
        ...(state.part !== "combined" && { part: state.part }), y: state.place[0].toFixed(3), x: state.place[1].toFixed(3) });
      history.replaceState(history.state, "", `#/jobs/${id}/attention?${said}`);
    }, 300);
  }

  /** Ask about the place; while an answer is awaited only the newest place is remembered. */
  async function look() {
    if (!state.image) return;
    if (state.asking) {
      state.wanted = true;
      return;
    }
    state.asking = true;
    try {
      do {
        state.wanted = false;
        const query = new URLSearchParams({ y: state.place[0], x: state.place[1] });
        state.answer = await get(`${url}/${state.image.id}?${query}`, { signal: leaving.signal });
        for (const layer of state.answer.layers) unpack(layer);
        problem.replaceChildren();
        drawAll();
      } while (state.wanted);
    } catch (error) {
      if (error instanceof Problem && error.status === 404 && state.send) setTimeout(() => open(state.send));
      else fail(error, look);
    } finally {
      state.asking = false;
    }
  }

  function fail(error, again) {
    if (error.name === "AbortError") return;
    problem.replaceChildren(trouble(error.message, error instanceof Problem && error.status === 422 ? null : () => (problem.replaceChildren(), again())));
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
    say(place, `Asking: row ${i + 1} of ${known.queries[0]}, column ${j + 1} of ${known.queries[1]} of ${layer.name}${state.chosen.head === null ? "" : `; over the picture: head ${state.chosen.head + 1}`}.`);
    keep();
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const inside = (value) => Math.max(0, Math.min(0.9999, value));
    return [inside((event.clientY - box.top) / box.height), inside((event.clientX - box.left) / box.width)];
  }

  let dragging = false;
  stage.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    dragging = true;
    stage.setPointerCapture(event.pointerId);
    state.place = at(event);
    look();
  });
  stage.addEventListener("pointermove", (event) => {
    if (!dragging) return;
    state.place = at(event);
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
    // From the place, not from the answer: keys may be faster than the server.
    state.place = [0, 1].map((axis) => {
      const inside = layer.size[axis] - before[axis] - after[axis];
      const pixel = before[axis] + Math.min(inside - 1, Math.floor(state.place[axis] * inside));
      const now = Math.round((pixel - known.first[axis]) / known.stride[axis]);
      const next = Math.max(0, Math.min(known.queries[axis] - 1, now + step[axis]));
      return Math.max(0, Math.min(0.9999, (known.first[axis] + next * known.stride[axis] - before[axis] + 0.5) / inside));
    });
    look();
  });

  const send = (path, body) => async () => (await ask(path, { method: "POST", body, headers: body ? { "Content-Type": "application/octet-stream" } : {}, signal: leaving.signal })).json();
  const fromSet = async () => {
    another.disabled = !sets.value;
    state.from = sets.value ? { dataset: sets.value, ...(state.file ? { file: state.file } : { number: state.number }) } : { image: "drawn" };
    if (sets.value) return open(send(`${url}/images?${new URLSearchParams(state.from)}`));
    const drawn = await testPicture();
    return open(send(`${url}/images`, drawn));
  };
  const ofOwn = (image) => {
    state.from = { image: "given" };
    give(id, image);
    return open(send(`${url}/images`, image));
  };
  file.addEventListener("change", () => file.files[0] && ofOwn(file.files[0]));
  sets.addEventListener("change", () => ((state.number = 0), (state.file = null), fromSet()));
  another.addEventListener("click", () => ((state.number += 1), (state.file = null), fromSet()));

  (async () => {
    try {
      const [job, data] = await Promise.all([get(`jobs/${id}`, { signal: leaving.signal }), get("datasets?limit=100", { signal: leaving.signal })]);
      say(heading, `${title(job)} · place by place, head by head`);
      const own = query.get("dataset") ?? job.request.dataset ?? job.request.finetune?.dataset;
      const set = query.get("dataset");
      if (set && !data.data.some((one) => one.id === set)) data.data.unshift({ id: set, name: set }); // an older one
      sets.replaceChildren(h("option", { value: "" }, "a drawing"), ...data.data.map((one) => h("option", { value: one.id, selected: one.id === own && !query.has("image") }, one.name)));
      const wanted = query.get("image") === "given";
      const image = wanted ? given(id) : null;
      await (image ? ofOwn(image) : fromSet());
      if (wanted && !image) problem.replaceChildren(h("p", { class: "notice" }, "The image that you tried was kept in the other page only; choose it again below."));
    } catch (error) {
      fail(error, () => location.reload());
    }
  })();
  return () => (leaving.abort(), clearTimeout(resting));
}
