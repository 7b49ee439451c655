// The page: a network that runs here, pictures that never leave this computer, and what the heads attend to.

import { h, say } from "./dom.js";
import { number, percent, some } from "./numbers.js";
import { testPicture } from "./picture.js";
import { NoImage, prepare } from "./prepare.js";
import { viewer } from "./viewer.js";

const BEST = 5;
const main = document.getElementById("main");

/** The classes that the network thinks most likely, [{label, share}]. */
function answers(logits, classes) {
  if (logits === null) return [];
  const most = Math.max(...logits);
  const powers = Array.from(logits, (logit) => Math.exp(logit - most));
  const sum = powers.reduce((total, power) => total + power, 0);
  const order = powers.map((_, index) => index).sort((one, other) => powers[other] - powers[one]);
  return order.slice(0, BEST).map((index) => ({ label: classes[index] ?? `class ${index}`, share: powers[index] / sum }));
}

function notice(message, again) {
  return h("div", { class: "notice bad", role: "alert" }, h("p", {}, message), again && h("button", { type: "button", onclick: again }, "Try again"));
}

async function start() {
  const bar = h("progress", { max: "100", value: "0", "aria-label": "Loading the network" });
  main.replaceChildren(h("p", { class: "loading", role: "status" }, "Loading the network into this page…"), bar);
  const response = await fetch("model.json");
  if (!response.ok) throw new Error(`model.json: the file server answered ${response.status}; copy the whole folder`);
  const told = await response.json();
  const { load } = await import("./network.js");
  const network = await load(told, (share) => (bar.value = 100 * share));

  const problem = h("div");
  const ranking = h("ol", { class: "answers", "aria-label": "Predictions" });
  const file = h("input", { type: "file", accept: "image/*", id: "file" });
  const drawing = h("button", { type: "button" }, "A drawing");
  const view = viewer({
    controls: [
      h("div", { class: "source" }, h("label", { for: "file" }, "Your picture: choose it, drop it anywhere, or paste it"), file),
      h("div", { class: "source" }, drawing, h("p", { class: "hint" }, "Pictures stay on this computer: the network runs in this page.")),
    ],
    failed: (error) => problem.replaceChildren(notice(error.message)),
  });
  document.title = `${told.base_model} · attention`;
  main.replaceChildren(
    h("div", { class: "head" }, h("div", {},
      h("h1", {}, "What the heads attend to"),
      h("p", { class: "muted" }, "T-CNN of ", h("code", {}, told.base_model), ` · ${some(told.layers.length, "attention layer")}, images of ${told.input.size.join("×")} pixels`))),
    problem, ranking, view.element,
  );

  let newest = 0;
  async function open(image) {
    const mine = (newest += 1);
    problem.replaceChildren();
    view.busy("Processing the picture…");
    await new Promise((resolve) => setTimeout(resolve)); // so that this is seen before the network takes the thread
    try {
      const { tensor, picture } = await prepare(image, told.input);
      const begun = performance.now();
      const { logits, at } = await network.look(tensor);
      if (mine !== newest) return;
      const best = answers(logits, told.classes);
      ranking.replaceChildren(...best.map((one) => {
        const share = h("span", { class: "share", "aria-hidden": "true" });
        share.style.setProperty("--share", one.share);
        return h("li", {}, h("span", { class: "guess" }, one.label), h("span", { class: "confidence" }, percent(one.share)), share);
      }));
      await view.show({ picture, says: [], layers: told.layers }, async (place) => at(place));
      view.element.dataset.seconds = number((performance.now() - begun) / 1000);
    } catch (error) {
      problem.replaceChildren(notice(error instanceof NoImage ? error.message : `The network cannot be run here: ${error.message}`));
    } finally {
      if (mine === newest) view.busy("");
    }
  }

  const given = (list) => list?.length && open(list[0]);
  file.addEventListener("change", () => given(file.files));
  drawing.addEventListener("click", async () => open(await testPicture()));
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("over");
  });
  document.addEventListener("dragleave", () => document.body.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("over");
    given(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => given(event.clipboardData.files));
  await open(await testPicture());
}

async function begin() {
  try {
    await start();
  } catch (error) {
    main.replaceChildren(notice(error.message, begin));
  }
}

begin();
