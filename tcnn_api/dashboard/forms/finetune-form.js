// The form that fine-tunes what is there: a job's result, a checkpoint, or a timm model.

import { h } from "../dom.js";
import { jobOptions, optionsOf } from "../components/every.js";
import { describeCheckpoint } from "../components/format.js";
import { field, select, tick, together } from "../components/form.js";
import { choose, fill } from "../components/lists.js";
import { modelPicker } from "./models.js";
import { ownWeights } from "./own-weights.js";
import { trainingFields } from "./training-form.js";
import { uploader } from "../uploads/uploads.js";

export function finetune(form, query, signal) {
  const wanted = query.get("job");
  const begin = ["checkpoint", "weights"].find((name) => query.has(name));
  const jobs = select([["", "Loading…"]]);
  const checkpoints = select([["", "Loading…"]]);
  const model = modelPicker();
  const pretrained = tick(true);
  const weights = ownWeights({ model, pretrained, wanted: query.get("weights") });
  const listed = (one) => [one.id, describeCheckpoint(one)];
  const sources = {
    job: h("div", { class: "fields" }, field("job", "Job", jobs, { wide: true, hint: "A conversion or fine-tuning job; if it has not finished, this job waits for it." })),
    checkpoint: h("div", { class: "fields", hidden: true }, field("checkpoint", "Checkpoint", checkpoints, { wide: true }),
      uploader("checkpoints", "Upload a checkpoint", ".safetensors", { into: checkpoints, listed })),
    model: h("div", { class: "fields", hidden: true }, field("model", "Model", model.input, { wide: true, extra: model.extra }),
      field("pretrained", "Pretrained weights", pretrained, { wide: true, hint: "Otherwise the weights are random." }), h("div", { class: "field wide" }, weights.parts)),
  };
  const radios = Object.entries({ job: "A job’s result", checkpoint: "An uploaded checkpoint", model: "A timm model" }).map(([value, word]) => {
    const radio = h("input", { type: "radio", name: "source", value, id: `source-${value}`, checked: value === "job" && !begin });
    radio.addEventListener("change", () => Object.entries(sources).forEach(([name, part]) => (part.hidden = name !== value)));
    return h("span", { class: "radio" }, radio, h("label", { for: `source-${value}` }, word));
  });
  const training = trainingFields("", query.get("dataset"));
  training.load();
  if (begin) {
    const radio = radios.map((one) => one.querySelector("input")).find((one) => one.value === { checkpoint: "checkpoint", weights: "model" }[begin]);
    radio.checked = true;
    radio.dispatchEvent(new Event("change"));
  }

  const filled = fill(jobs, async () => {
    const coming = await jobOptions({ expected: true, signal }); // first: one that is done meanwhile is among both, and not among none
    const made = await jobOptions({ signal });
    return [...made, ...coming.filter(([id]) => !made.some(([other]) => id && other === id))];
  }, "No job has produced a model yet", wanted);
  const filledToo = fill(checkpoints, () => optionsOf("checkpoints", listed, { signal }), "None uploaded yet", query.get("checkpoint"));

  return {
    lead: "Train a model on your own images; a CNN is converted first. With the presets for small data, content heads learn alongside the heads of the convolution’s taps; with the paper’s preset, those heads learn to look elsewhere too.",
    parts: [
      h("section", { class: "card" }, h("h2", {}, "Starting point"),
        h("fieldset", { class: "choice" }, h("legend", {}, "Start from"), radios), Object.values(sources)),
      h("section", { class: "card" }, h("h2", {}, "Training"), training.parts),
    ],
    ready: () => Promise.all([filled, filledToo, weights.ready, training.ready()]),
    fill(request) {
      const source = ["job", "checkpoint", "model"].find((name) => request[name]) ?? "job";
      const radio = form.querySelector(`#source-${source}`);
      radio.checked = true;
      radio.dispatchEvent(new Event("change"));
      if (source === "model") model.set(request.model);
      else choose({ job: jobs, checkpoint: checkpoints }[source], request[source]);
      pretrained.checked = request.pretrained ?? true;
      weights.fill(request);
      training.fill(request);
    },
    body() {
      const source = form.querySelector("input[name=source]:checked").value;
      const control = { job: jobs, checkpoint: checkpoints, model: model.input }[source];
      const [body, trained] = together(() => {
        if (!control.value.trim()) throw Object.assign(new Error("Choose one first."), { control });
        return { [source]: control.value.trim() };
      }, training.body);
      Object.assign(body, trained);
      return source === "model" ? weights.into(body) : body;
    },
  };
}
