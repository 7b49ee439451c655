// Which model is looked at: a checkpoint of the run, at which temperature, and what stands beside it.

import { h, say } from "../dom.js";
import { number } from "../numbers.js";

export const CHECKPOINTS = { start: "Before training", best: "The job’s model", last: "After the last epoch" }; // in the order of time
// The slider of τ: places from the convolution's 1/46 to the paper's 1, and on to 4, each a factor of about 1.02 from the next.
const [BELOW, ABOVE] = [{ tau: 1 / 46, place: -166 }, { tau: 4, place: 60 }];

/** The τ of a place of the slider, in the three digits that pages show, addresses keep and the server is asked for. */
export function tauAt(place) {
  const end = place < 0 ? BELOW : ABOVE;
  return Number((end.tau ** (place / end.place)).toPrecision(3));
}

/** Where a τ is, between places as well. */
export function placeOf(tau) {
  const end = tau < 1 ? BELOW : ABOVE;
  return end.place * (Math.log(tau) / Math.log(end.tau));
}

/** Controls for the two; `changed` is told of every change. `given` is the state of an address. */
export function viewControls(given, changed) {
  const state = {
    checkpoint: CHECKPOINTS[given.checkpoint] ? given.checkpoint : "best",
    beside: CHECKPOINTS[given.beside] ? given.beside : "",
    tau: given.tau > 0 ? Number(Math.min(1000, Math.max(0.001, Number(given.tau))).toPrecision(3)) : null,
  };
  let there = ["best"];
  const which = h("input", { type: "range", id: "view-checkpoint", min: "0", step: "1", list: "view-checkpoints", "aria-describedby": "view-checkpoint-said" });
  const stops = h("datalist", { id: "view-checkpoints" });
  const shown = h("span", { id: "view-checkpoint-said", class: "hint" });
  const beside = h("select", { id: "view-beside" });
  const slider = h("input", { type: "range", id: "view-tau", min: BELOW.place, max: ABOVE.place, step: "1", list: "view-taus", "aria-describedby": "view-tau-said" });
  const marks = h("datalist", { id: "view-taus" }, [BELOW.place, 0].map((value) => h("option", { value })));
  const told = h("span", { id: "view-tau-said", class: "hint" });
  const back = h("button", { type: "button", class: "quiet", onclick: () => set({ tau: null }) }, "As trained");
  const temperature = h("div", { class: "source" }, h("label", { for: "view-tau" }, "Temperature τ "), told, h("div", { class: "pair" }, slider, marks, back));
  const run = h("div", { class: "source halves" },
    h("div", {}, h("label", { for: "view-checkpoint" }, "Checkpoint "), shown, which, stops),
    h("div", {}, h("label", { for: "view-beside" }, "Compare with"), beside));
  which.addEventListener("input", () => set({ checkpoint: there[Number(which.value)] }));
  beside.addEventListener("change", () => set({ beside: beside.value }));
  slider.addEventListener("input", () => set({ tau: tauAt(Number(slider.value)) }));

  function set(news) {
    Object.assign(state, news);
    if (state.beside === state.checkpoint) state.beside = "";
    changed();
  }

  /** What this job has; what an address asks for and is not there is left out. */
  function offer(checkpoints) {
    there = Object.keys(CHECKPOINTS).filter((one) => one === "best" || checkpoints.includes(one));
    if (!there.includes(state.checkpoint)) state.checkpoint = "best";
    if (!there.includes(state.beside)) state.beside = "";
    which.max = String(there.length - 1);
    stops.replaceChildren(...there.map((one, at) => h("option", { value: at, label: CHECKPOINTS[one] })));
    beside.replaceChildren(h("option", { value: "" }, "nothing"), ...there.map((one) => h("option", { value: one }, CHECKPOINTS[one])));
    run.hidden = there.length === 1;
  }

  /** Show the state, and the temperature that the model has of itself. */
  function draw(own, turned) {
    which.value = String(there.indexOf(state.checkpoint));
    which.setAttribute("aria-valuetext", CHECKPOINTS[state.checkpoint]);
    say(shown, CHECKPOINTS[state.checkpoint]);
    beside.value = state.beside;
    for (const option of beside.options) option.disabled = option.value === state.checkpoint;
    temperature.hidden = !turned;
    const tau = state.tau ?? own;
    slider.value = placeOf(tau);
    slider.setAttribute("aria-valuetext", number(tau));
    say(told, state.tau === null ? `${number(own)}, as trained` : `${number(tau)}; overrides the checkpoint’s own`);
    back.hidden = state.tau === null;
  }

  /** What a question about one checkpoint says. */
  function question(checkpoint) {
    return { ...(checkpoint !== "best" && { checkpoint }), ...(state.tau !== null && { temperature: String(state.tau) }) };
  }

  /** What an address says of it. */
  function address() {
    return {
      ...(state.checkpoint !== "best" && { checkpoint: state.checkpoint }), ...(state.beside && { beside: state.beside }),
      ...(state.tau !== null && { tau: String(state.tau) }),
    };
  }

  return { elements: [run, temperature], state, offer, draw, question, address };
}
