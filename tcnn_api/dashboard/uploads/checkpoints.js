// Models that were uploaded: checkpoints of tcnn's, and weights of CNNs that are to be converted.

import { h } from "../dom.js";
import { bytes, count, date, short } from "../components/format.js";
import { listing } from "./listing.js";
import { WEIGHTS, dropZone, modelRoute } from "./uploads.js";

const LISTS = {
  checkpoints: { title: "T-CNNs", none: "No checkpoints uploaded yet; models produced by jobs are on the jobs’ pages.", heads: ["Name", "Model", "Layers", "Parameters", "Classes", "Fine-tuned", "Size", "Uploaded"],
    cells: (one) => [one.base_model, count(one.layers), short(one.parameters), count(one.num_classes), one.trained ? "Yes" : "No", bytes(one.size), date(one.created_at)] },
  weights: { title: "Weights of CNNs", none: "None uploaded yet.", heads: ["Name", "Model", "Tensors", "Values", "Size", "Uploaded"],
    cells: (one) => [one.architecture ?? "not given", count(one.tensors), short(one.parameters), bytes(one.size), date(one.created_at)] },
};

export function show(main, query) {
  document.title = "Checkpoints · tcnn";
  const leaving = new AbortController();
  const zone = dropZone({
    label: "Upload models", accept: WEIGHTS, route: modelRoute,
    hint: "Drop files here, or choose them: checkpoints written by tcnn, or the weights of your own CNN (a state dict of a timm model, as safetensors or saved with torch.save), which you can then convert.",
  });
  main.append(h("div", { class: "head" }, h("h1", {}, "Checkpoints")), zone, ...Object.entries(LISTS).map(([kind, told]) => h("section", {},
    h("h2", { class: "over" }, told.title),
    listing(kind, {
      ...told, link: (one) => `#/${kind}/${one.id}`, after: query.get(kind) ?? "", home: "#/checkpoints", older: (next) => `#/checkpoints?${kind}=${next}`, signal: leaving.signal,
    }))));
  return () => leaving.abort();
}
