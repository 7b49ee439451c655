// The form that converts a model, and fine-tunes it in the same job.

import { h } from "../dom.js";
import { field, numeric, putAll, select, text, tick, together, whole } from "../components/form.js";
import { modelPicker } from "./models.js";
import { ownWeights } from "./own-weights.js";
import { contentScope } from "./scope-fields.js";
import { trainingFields } from "./training-form.js";

/** Those that the presets for small data train; without any they would have nothing but a convolution to train. */
const CONTENT_HEADS = 4;

/** Its parts; `others` are the names of what stands in every form. */
export function transform(query, others) {
  const model = modelPicker();
  const pretrained = tick(true);
  const own = {
    num_classes: whole({ placeholder: "as in the weights" }),
    stage: whole({ placeholder: "−1, the last" }),
    target: text({ placeholder: "layer4\\.0\\..*" }),
    temperature: numeric({ placeholder: "1/46 = 0.0217" }),
    head_dim: whole({ placeholder: "automatic" }),
    content_heads: whole({ placeholder: CONTENT_HEADS }),
    position_reach: whole({ placeholder: "15" }),
    seed: whole({ placeholder: "0" }),
  };
  const weights = ownWeights({ model, pretrained, wanted: query.get("weights") });
  const stride = select([["keep", "Keep: equivalent to the CNN"], ["remove", "Remove: as in the paper"], ["dilate", "Remove, and dilate the layers after it"]]);
  const queryKey = select([["normal", "Normal, small"], ["mimetic", "Mimetic: similar pixels attend to each other"]]);
  const position = select([["isotropic", "Around a centre (isotropic)"], ["quadratic", "Gaussian of any shape (quadratic)"], ["relative", "Learned shifts (relative)"], ["relative-content", "Learned shifts, content-dependent"]]);
  const scope = contentScope();
  const also = tick(false, { id: "also-finetune" });
  const training = trainingFields("finetune.");
  const box = h("div", { hidden: true }, training.parts);
  also.addEventListener("change", () => {
    box.hidden = !also.checked;
    own.content_heads.placeholder = also.checked ? "from the preset" : CONTENT_HEADS;
    if (also.checked) training.load();
  });
  let more = {}; // settings of a job that is edited for which the form has no field
  return {
    trains: () => also.checked,
    ready: () => Promise.all([training.ready(), weights.ready]),
    fill(request) {
      model.set(request.model);
      weights.fill(request);
      pretrained.checked = request.pretrained ?? true;
      stride.value = request.stride ?? "keep";
      queryKey.value = request.query_key ?? "normal";
      position.value = request.position ?? "isotropic";
      scope.fill(request.content);
      more = { ...request };
      for (const name of [...others, ...Object.keys(own), "pretrained", "model", "weights", "stride", "query_key", "position", "content", "finetune"]) delete more[name];
      for (const [name, control] of Object.entries(own)) control.value = request[name] ?? "";
      if (!request.finetune) own.content_heads.value ||= "0"; // it was made so
      also.checked = Boolean(request.finetune);
      also.dispatchEvent(new Event("change"));
      if (request.finetune) training.fill(request.finetune);
    },
    lead: "Pick a pretrained CNN from timm. The convolutions of its last stage become gated positional self-attention that computes the same function; the job verifies this.",
    parts: [
      h("section", { class: "card" }, h("h2", {}, "Model"), h("div", { class: "fields" },
        field("model", "Model", model.input, { wide: true, extra: model.extra }),
        field("pretrained", "Pretrained weights", pretrained, { half: true, hint: "Otherwise the weights are random." }),
        field("stride", "Stride of the stage", stride, { half: true })),
        weights.parts,
        h("details", {}, h("summary", {}, "More conversion options"), h("div", { class: "fields" },
          field("num_classes", "Classes", own.num_classes),
          field("stage", "Stage", own.stage, { hint: "Counted from 0; −1 is the last." }),
          field("target", "Convolutions by name", own.target, { half: true, hint: "A regular expression, in the place of the stage." }),
          field("temperature", "Temperature τ", own.temperature, { hint: "1/46 is the CNN; the paper starts at 1." }),
          field("head_dim", "Head width", own.head_dim, { hint: "Channels of a head’s queries and keys." }),
          field("content_heads", "Content heads", own.content_heads, { hint: "In addition to one head per tap; they contribute nothing until trained. The paper has none (0)." }),
          field("query_key", "Query and key weights", queryKey, { half: true }),
          scope.parts,
          field("position", "Positional attention", position, { half: true }),
          field("position_reach", "Farthest shift", own.position_reach, { hint: "Pixels; for learned shifts only." }),
          field("seed", "Seed", own.seed)))),
      h("section", { class: "card" }, h("h2", {}, "Fine-tuning"),
        h("div", { class: "field tick" }, also, h("label", { for: "also-finetune" }, "Fine-tune it in the same job")), box),
    ],
    body() {
      const [body, content, trained] = together(() => {
        if (!model.input.value.trim()) throw Object.assign(new Error("Choose a model."), { control: model.input });
        const made = weights.into({ ...more, model: model.input.value.trim(), stride: stride.value, query_key: queryKey.value });
        if (position.value !== "isotropic") made.position = position.value; // older workers know no other, and refuse the word
        putAll(made, own);
        if (!also.checked) made.content_heads ??= CONTENT_HEADS;
        return made;
      }, () => scope.body(), () => (also.checked ? training.body() : null));
      if (content !== "global") body.content = content;
      if (trained) body.finetune = trained;
      return body;
    },
  };
}
