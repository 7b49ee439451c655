// The attention explorer: the server puts a picture through a job's model, and tells what its heads attend to.

import { h, isolated, say } from "../dom.js";
import { every } from "../components/every.js";
import { title } from "../components/format.js";
import { give, given } from "./handover.js";
import { Problem, ask, get } from "../server/http.js";
import { floats, mixed } from "../maps.js";
import { trouble } from "../components/parts.js";
import { testPicture } from "../picture.js";
import { viewer } from "../viewer.js";
import { CHECKPOINTS, viewControls } from "./views.js";

const SOON = 60_000; // milliseconds within which a picture that is lost twice was never where it is asked about

function share(said) {
  const value = Number(said ?? 0.5);
  return value >= 0 && value <= 1 ? Math.min(0.9999, value) : 0.5;
}

/** A layer as the server sends it, with its maps. */
function unpacked(layer) {
  return mixed(layer, floats(layer.content), layer.positional === null ? null : floats(layer.positional));
}

export function show(main, id, query) {
  document.title = "Attention · tcnn";
  const url = `jobs/${id}/attention`;
  const leaving = new AbortController();
  const state = { send: null, again: null, lost: -Infinity, apart: false, from: {}, number: Number(query.get("number")) || 0, file: query.get("file") };

  const heading = h("p", { class: "muted" });
  const slow = h("p", { class: "hint", role: "status" });
  const problem = h("div");
  const file = h("input", { type: "file", accept: "image/*", id: "attention-file" });
  const sets = h("select", { id: "attention-set" });
  const another = h("button", { type: "button" }, "Another picture");

  const views = viewControls(Object.fromEntries(query), () => view.look());
  const view = viewer({
    place: ["y", "x"].map((axis) => share(query.get(axis))),
    part: query.get("part"),
    order: query.get("order"),
    own: query.get("own") === "1",
    circles: query.get("circles") === "1",
    wanted: { layer: query.get("layer"), head: query.get("head") },
    controls: [
      ...views.elements,
      h("div", { class: "source" }, h("label", { for: "attention-set" }, "Pictures from"), h("div", { class: "pair" }, sets, another)),
      h("div", { class: "source" }, h("label", { for: "attention-file" }, "Your own picture"), file),
    ],
    changed: keep,
    failed: (error, again) => (forgotten(error) ? sendAgain(again) : fail(error, again)),
  });
  main.append(
    h("div", { class: "head" }, h("div", {},
      h("p", { class: "crumb" }, h("a", { href: "#/" }, "Jobs"), " / ", h("a", { href: `#/jobs/${id}` }, h("code", {}, id)), " / attention"),
      h("h1", {}, "What the heads attend to"), heading, slow)),
    problem, view.element,
  );

  /** Send a picture; `send` does it again when the server has forgotten it, and may ask for maps with it. */
  async function open(send) {
    state.send = send;
    problem.replaceChildren();
    view.busy(view.state.image ? "Processing the picture…" : "Loading the model; the first picture takes a few seconds…");
    try {
      const found = await send();
      if (leaving.signal.aborted || state.send !== send) return;
      views.offer(found.checkpoints ?? []);
      await view.show(found, async (place) => {
        const { checkpoint, beside } = views.state;
        const [answer, other] = await Promise.all([maps(send, found.id, place, checkpoint), beside ? maps(send, found.id, place, beside) : null]);
        problem.replaceChildren();
        views.draw(found.layers[0].temperature, Boolean(found.layers[0].gate));
        return { ...answer, beside: other, caption: other || checkpoint !== "best" || views.state.tau !== null ? answer.caption : "" };
      });
    } catch (error) {
      fail(error, () => open(send));
    } finally {
      view.busy("");
    }
  }

  /** What one checkpoint attends to from a place. */
  async function maps(send, image, [y, x], checkpoint) {
    const asked = { y, x, ...views.question(checkpoint) };
    const answer = state.apart ? (await send({ maps: true, ...asked })).attention
      : await get(`${url}/${image}?${new URLSearchParams(asked)}`, { signal: leaving.signal });
    return { layers: answer.layers.map(unpacked), says: answer.says, caption: CHECKPOINTS[checkpoint] };
  }

  /** The address says what is seen, so that it can be sent to somebody; at rest, since browsers bear few changes a second. */
  let resting = null;
  function keep() {
    clearTimeout(resting);
    resting = setTimeout(() => {
      const { image, part, order, own, circles, place, chosen: { layer, head } } = view.state;
      const said = new URLSearchParams({ ...state.from, layer: image.layers[layer].name, ...(head !== null && { head: head + 1 }),
        ...(part !== "combined" && { part }), ...(order !== "kernel" && { order }), ...(own && { own: 1 }), ...(circles && { circles: 1 }),
        ...views.address(), y: place[0].toFixed(3), x: place[1].toFixed(3) });
      history.replaceState(history.state, "", `#/jobs/${id}/attention?${said}`);
    }, 300);
  }

  /** Whether the server no longer has the picture. */
  function forgotten(error) {
    return error instanceof Problem && error.status === 404 && state.send && !state.apart;
  }

  /** Send a forgotten picture once more. If that is lost, too, another server is asked than has it: it goes with every question. */
  function sendAgain(again) {
    state.apart = performance.now() - state.lost < SOON;
    state.lost = performance.now();
    if (state.apart) say(slow, "Every request reaches another server, so the picture is sent with each, and maps take longer. Whoever runs the service can let those of one job reach the same server: see “Many hosts” in docs/operations.md.");
    setTimeout(state.apart ? again : () => open(state.send));
  }

  function fail(error, again) {
    if (error.name === "AbortError") return;
    state.again = again;
    const said = trouble(error, error instanceof Problem && error.status === 422 ? null : () => (problem.replaceChildren(), state.again()));
    if (problem.textContent !== said.textContent) problem.replaceChildren(said); // of many places that are asked for one says so
  }

  const send = (query, body) => async (also) => (await ask(`${url}/images?${new URLSearchParams({ ...query, ...also })}`, { method: "POST", body, headers: body ? { "Content-Type": "application/octet-stream" } : {}, signal: leaving.signal })).json();
  const fromSet = async () => {
    another.disabled = !sets.value;
    state.from = sets.value ? { dataset: sets.value, ...(state.file ? { file: state.file } : { number: state.number }) } : { image: "drawn" };
    if (sets.value) return open(send(state.from));
    const drawn = await testPicture();
    return open(send({}, drawn));
  };
  const ofOwn = (image) => {
    state.from = { image: "given" };
    give(id, image);
    return open(send({}, image));
  };
  file.addEventListener("change", () => file.files[0] && ofOwn(file.files[0]));
  sets.addEventListener("change", () => ((state.number = 0), (state.file = null), fromSet()));
  another.addEventListener("click", () => ((state.number += 1), (state.file = null), fromSet()));

  async function begin() {
    try {
      const [job, data] = await Promise.all([get(`jobs/${id}`, { signal: leaving.signal }), every("datasets", { signal: leaving.signal })]);
      say(heading, `${isolated(title(job))} · place by place, head by head`);
      const own = query.get("dataset") ?? job.request.dataset ?? job.request.finetune?.dataset;
      const set = query.get("dataset");
      if (set && !data.data.some((one) => one.id === set)) data.data.unshift({ id: set, name: set }); // an older one
      sets.replaceChildren(h("option", { value: "" }, "a drawing"), ...data.data.map((one) => h("option", { value: one.id, selected: one.id === own && !query.has("image") }, one.name)));
      const wanted = query.get("image") === "given";
      const image = wanted ? given(id) : null;
      await (image ? ofOwn(image) : fromSet());
      if (wanted && !image) problem.replaceChildren(h("p", { class: "notice" }, "The image that you tried is no longer in this window; choose it again below."));
    } catch (error) {
      fail(error, begin);
    }
  }
  begin();
  return () => (leaving.abort(), clearTimeout(resting));
}
