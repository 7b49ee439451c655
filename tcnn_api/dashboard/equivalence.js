// How well the converted model computes what its CNN computes: the numbers of the verification, and the drift at τ = 1.

import { h } from "./dom.js";
import { number, percent, short } from "./format.js";

export function equivalence(report, conversion) {
  const passes = report.passes ?? [];
  const drift = report.drift;
  return h("section", { class: "card" },
    h("h2", {}, "Equivalence"),
    h("p", { class: report.passed ? "verdict good" : "verdict bad" },
      h("span", { "aria-hidden": "true" }, report.passed ? "✓ " : "✕ "),
      report.passed ? "The converted model computes the same function as the CNN." : "The converted model is not equivalent to the CNN."),
    passes.length > 0 && h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Errors by precision" },
      h("table", {},
        h("thead", {}, h("tr", {}, ["Precision", "Error", "Allowed", "Same answer", ""].map((word) => h("th", { scope: "col" }, word)))),
        h("tbody", {}, passes.map((one) => h("tr", {},
          h("th", { scope: "row" }, one.dtype),
          h("td", {}, number(Math.max(one.logits.relative, one.logits.max_relative))),
          h("td", {}, number(one.tolerance)),
          h("td", {}, percent(one.top1_agreement)),
          h("td", {}, one.passed ? "✓ passed" : "✕ failed")))))),
    h("dl", { class: "facts roomy" },
      report.temperature !== undefined && fact("Compared at τ", number(report.temperature)),
      report.images && fact("On", report.images),
      drift && fact("Drift at τ = 1", `${percent(drift.logits.relative)} of the output, ${percent(drift.top1_agreement, 0)} same answers`),
      conversion && fact("Converted", `${conversion.layers.length} layers of ${conversion.stage}`),
      conversion && fact("Parameters", `${short(conversion.parameters_before)} → ${short(conversion.parameters_after)}`)),
    passes.length > 0 && layers(passes));
}

function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

/** The largest error of every layer, in every precision. */
function layers(passes) {
  const worst = (error) => Math.max(error.random.relative, error.random.max_relative);
  return h("details", {}, h("summary", {}, "Layer by layer"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Errors by layer" },
      h("table", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Layer"), passes.map((one) => h("th", { scope: "col" }, one.dtype)))),
        h("tbody", {}, passes[0].layers.map((layer, place) => h("tr", {},
          h("th", { scope: "row" }, h("code", {}, layer.name)),
          passes.map((one) => h("td", {}, one.layers[place] ? number(worst(one.layers[place])) : "–"))))))));
}
