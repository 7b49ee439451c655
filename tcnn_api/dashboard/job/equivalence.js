// How well the converted model computes what its CNN computes: the numbers of the verification, and the drift at τ = 1.

import { h } from "../dom.js";
import { number, percent, short, some } from "../components/format.js";
import { scrolling } from "../components/scrolling.js";

export function equivalence(report, conversion) {
  const passes = report.passes ?? [];
  const drift = report.drift;
  return h("section", { class: "card" },
    h("h2", {}, "Equivalence"),
    h("p", { class: report.passed ? "verdict good" : "verdict bad" },
      h("span", { "aria-hidden": "true" }, report.passed ? "✓ " : "✕ "),
      report.passed ? "The converted model computes the same function as the CNN." : "The converted model is not equivalent to the CNN."),
    passes.length > 0 && scrolling("Errors by precision", {},
      h("table", {},
        h("thead", {}, h("tr", {}, ["Precision", "Error", "Allowed", "Same top-1", "Verdict"].map((word) => h("th", { scope: "col" }, word)))),
        h("tbody", {}, passes.map((one) => h("tr", {},
          h("th", { scope: "row" }, one.dtype),
          h("td", {}, number(Math.max(one.logits.relative, one.logits.max_relative))),
          h("td", {}, number(one.tolerance, 1)),
          h("td", {}, percent(one.top1_agreement)),
          h("td", {}, one.passed ? "✓ passed" : "✕ failed")))))),
    h("dl", { class: "facts roomy" },
      report.temperature !== undefined && fact("Compared at τ", number(report.temperature)),
      report.images && fact("Compared on", sample(report.images)),
      conversion && fact("Converted", `${some(conversion.layers.length, "layer")} of ${conversion.stage}`),
      conversion && fact("Parameters", `${short(conversion.parameters_before)} → ${short(conversion.parameters_after)}`)),
    drift && h("p", { class: "hint drift" }, drifted(drift, report.images ?? "")),
    passes.length > 0 && layers(passes));
}

/** What a batch was, in words: "noise 2×3×224×224" is two of noise. */
function sample(images) {
  const [kind, shape = ""] = images.split(" ");
  const [batch, , height, width] = shape.split("×");
  if (!width) return images;
  return `${some(Number(batch), "image")} of ${kind === "noise" ? "noise" : "the data set"}, ${height}×${width} pixels`;
}

/** Drift is no error: at τ = 1 the same weights are another function, which training starts to make its own. */
function drifted(drift, images) {
  const far = `At τ = 1, towards which training takes it, the same untrained weights compute another function: the output differs from the CNN’s by ${percent(drift.logits.relative)}`;
  if (!images || images.startsWith("noise")) return `${far}, on noise. Only real images would show how predictions change.`;
  const batch = images.split(" ")[1]?.split("×")[0];
  return `${far}, and ${percent(drift.top1_agreement, 0)} of ${batch ? some(Number(batch), "real image") : "the real images"} get the same prediction.`;
}

function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

/** The largest error of every layer, in every precision. */
function layers(passes) {
  const worst = (error) => Math.max(error.random.relative, error.random.max_relative);
  return h("details", {}, h("summary", {}, "Layer by layer"),
    scrolling("Errors by layer", {},
      h("table", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Layer"), passes.map((one) => h("th", { scope: "col" }, one.dtype)))),
        h("tbody", {}, passes[0].layers.map((layer, place) => h("tr", {},
          h("th", { scope: "row" }, h("code", {}, layer.name)),
          passes.map((one) => h("td", {}, one.layers[place] ? number(worst(one.layers[place])) : "–"))))))));
}
