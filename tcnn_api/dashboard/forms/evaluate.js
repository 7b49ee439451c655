// A form: measure a model on a data set, beside others, under corruptions and at several sizes.

import { h, isolated } from "../dom.js";
import { field, keeping, posting, putAll, readAll, select, sending, text, tick, together, whole } from "../components/form.js";
import { every, jobOptions, optionsOf } from "../components/every.js";
import { describeCheckpoint, describeDataset } from "../components/format.js";
import { common, fill } from "../components/lists.js";
import { modelPicker } from "./models.js";
import { ownWeights } from "./own-weights.js";
import { joining } from "../uploads/uploads.js";

const SETS = {
  "": [],
  some: ["gaussian_noise", "motion_blur", "fog", "jpeg_compression"],
  all: ["gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow", "frost", "fog",
    "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"],
};
const SOURCES = { job: "A job’s model", checkpoint: "An uploaded checkpoint", model: "A timm model" };
const EXAMPLES = 24; // images of each kind that a result names

export function show(main, query) {
  document.title = "Evaluate a model · tcnn";
  const leaving = new AbortController();
  const { signal } = leaving;
  const own = { job: select([["", "Loading…"]]), checkpoint: select([["", "Loading…"]]), model: modelPicker() };
  const pretrained = tick(true);
  const weights = ownWeights({ model: own.model, pretrained, none: "None: use timm’s", wanted: query.get("weights") });
  const control = (source) => (source === "model" ? own.model.input : own[source]);
  const parts = {
    job: field("job", "Model", own.job, { wide: true }),
    checkpoint: field("checkpoint", "Checkpoint", own.checkpoint, { wide: true }),
    model: field("model", "timm name", own.model.input, { wide: true, extra: own.model.extra, hint: "With its pretrained weights or your own, and their classes." }),
  };
  const radios = Object.entries(SOURCES).map(([value, word]) => {
    const radio = h("input", { type: "radio", name: "source", value, id: `source-${value}`, checked: value === "job" });
    radio.addEventListener("change", choose);
    return h("span", { class: "radio" }, radio, h("label", { for: `source-${value}` }, word));
  });
  const against = h("select", { multiple: true, size: "5" });
  const named = text({ placeholder: "resnet50, convnext_tiny" });
  const dataset = select([["", "Loading…"]]);
  const corruptions = select([["", "None"], ["some", "Four, one of each category"], ["all", "All fifteen of ImageNet-C"]]);
  const sizes = whole({ inputmode: "text", placeholder: "the model’s default; or several: 160 224" });
  const limit = whole({ placeholder: "all" });
  const classes = tick(true);
  const examples = tick(true);
  const summary = h("div", { class: "notice bad", role: "alert", hidden: true });
  const button = h("button", { type: "submit", class: "main" }, "Evaluate");
  const form = h("form", { class: "submit", novalidate: true },
    h("section", { class: "card" }, h("h2", {}, "Models"),
      h("fieldset", { class: "choice" }, h("legend", {}, "Model to evaluate"), radios),
      h("div", { class: "fields" }, Object.values(parts)),
      weights.parts,
      h("div", { class: "fields" },
        field("against", "Compare with", against, { wide: true, hint: "Models of jobs, uploaded checkpoints, and weights that name their model; any number, or none." }),
        field("against.timm", "Compare with timm models", named, { wide: true, hint: "Separated by commas." }))),
    h("section", { class: "card" }, h("h2", {}, "Images"), h("div", { class: "fields" },
      field("dataset", "Data set", dataset, { wide: true, hint: "If a model was trained on it, only the images held out from that training are used." }),
      field("config.corruptions", "Corruptions", corruptions, { half: true, hint: "At all five severities; each is a pass over the images." }),
      field("config.sizes", "Image sizes", sizes, { half: true, hint: "Pixels per side; several give a curve." }),
      field("config.limit", "Image limit", limit, { hint: "Taken from each class in turn." }),
      field("config.per_class", "Class by class", classes, { half: true, hint: "Accuracy of every class, and confusions between classes." }),
      field("config.examples", "List individual images", examples, { half: true, hint: "Those that are misclassified, and those on which models differ." }))),
    summary, h("div", { class: "actions" }, button));
  main.append(h("div", { class: "head" }, h("h1", {}, "Evaluate a model")),
    h("p", { class: "lead" }, "Measure accuracy on images that the model has not seen, and compare it with other models: by class, by corruption and severity, by image size, and image by image."), form);

  const references = new Map(); // of uploaded weights, by their id
  let origins = []; // of the models to compare with, as they were sent: the field that each comes from
  const source = () => form.querySelector("input[name=source]:checked").value;
  function choose() {
    for (const [name, part] of Object.entries(parts)) part.hidden = name !== source();
    weights.parts.hidden = source() !== "model";
    apart();
  }

  /** What is measured is not offered beside itself. */
  function apart() {
    const measured = source() === "model" ? weights.value() : own[source()].value;
    for (const option of against.options) {
      const reference = references.get(option.value);
      const same = Boolean(measured) && option.value === measured && (!reference || reference.model === own.model.input.value.trim());
      option.hidden = option.disabled = same;
      if (same) option.selected = false;
    }
  }

  const kept = keeping(form);
  const ofCheckpoint = (one) => [one.id, describeCheckpoint(one)];
  const ofData = (one) => [one.id, describeDataset(one)];
  const jobs = common(() => jobOptions({ signal }));
  const checkpoints = common(() => optionsOf("checkpoints", ofCheckpoint, { signal }));
  const ofWeights = async () => (await every("weights", { signal })).data.filter((one) => one.architecture).map((one) => {
    references.set(one.id, { model: one.architecture, weights: one.id });
    return [one.id, `${isolated(one.name)} · ${one.architecture}, weights of your own`];
  });
  const filled = Promise.all([
    weights.ready,
    fill(own.job, jobs, "No job has produced a model yet", query.get("job")),
    fill(own.checkpoint, checkpoints, "None uploaded yet", query.get("checkpoint")),
    fill(against, async () => (await Promise.all([jobs(), checkpoints(), ofWeights()])).flat(), "No models or checkpoints yet"),
    fill(dataset, () => optionsOf("datasets", ofData, { signal }),
      "None uploaded yet: upload one on the Data page", query.get("dataset")),
  ]).then(apart);
  joining(dataset, "datasets", { listed: ofData });
  joining(own.checkpoint, "checkpoints", { listed: ofCheckpoint, chosen: apart });
  form.addEventListener("change", apart);
  choose();
  if (kept.before) kept.restore(() => filled).then(choose);
  else if (query.has("checkpoint") || query.has("weights")) {
    form.querySelector(query.has("checkpoint") ? "#source-checkpoint" : "#source-model").checked = true;
    choose();
  }

  function request() {
    const config = { per_class: classes.checked, ...(examples.checked && { examples: EXAMPLES }) };
    const [model] = together(() => {
      const value = control(source()).value.trim();
      if (!value) throw Object.assign(new Error("Choose a model."), { control: control(source()) });
      return { [source()]: value, ...(source() === "model" && weights.value() && { weights: weights.value() }) };
    }, () => {
      if (!dataset.value) throw Object.assign(new Error("Choose a data set."), { control: dataset });
    }, () => {
      const given = readAll(sizes);
      if (given.some((one) => !Number.isSafeInteger(one) || one < 1)) throw Object.assign(new Error("Expected whole numbers of pixels, such as 160 224."), { control: sizes });
      if (given.length) config.sizes = given;
    }, () => putAll(config, { limit }));
    if (corruptions.value) config.corruptions = SETS[corruptions.value];
    const others = [
      ...[...against.selectedOptions].map((one) => one.value).filter(Boolean).map((id) => [references.get(id) ?? (id.startsWith("ckpt_") ? { checkpoint: id } : { job: id }), "against"]),
      ...named.value.split(/[\s,;]+/).filter(Boolean).map((name) => [{ model: name }, "against.timm"]),
    ].filter(([one]) => JSON.stringify(one) !== JSON.stringify(model));
    origins = others.map(([, origin]) => origin);
    return { ...model, config, dataset: dataset.value, ...(others.length && { against: others.map(([one]) => one) }) };
  }

  const send = sending(form, summary, { ready: () => filled, body: request, named: (name) => origins[/^against\.(\d+)/.exec(name)?.[1]] ?? name });
  const posted = posting(signal);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(button, async (body) => (location.hash = `#/jobs/${(await posted("evaluate", body)).id}`));
  });
  return () => leaving.abort();
}
