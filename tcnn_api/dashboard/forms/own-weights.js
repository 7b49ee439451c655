// Fields for the weights of a model that a form names: timm's, random ones, or the user's own, uploaded.

import { h, isolated } from "../dom.js";
import { optionsOf } from "../components/every.js";
import { field, select } from "../components/form.js";
import { bytes } from "../components/format.js";
import { choose as mean, fill } from "../components/lists.js";
import { WEIGHTS, uploader } from "../uploads/uploads.js";

/**
 * `model` is the picker that they are for, `pretrained` the tick for timm's, `wanted` the id of those to begin with, `none` what
 * a model has without them.
 */
export function ownWeights({ model, pretrained, wanted, none = "None: use timm’s, or random ones" }) {
  const control = select([["", none]]);
  const known = new Map();
  const note = h("p", { class: "hint", "aria-live": "polite" });

  function add(one) {
    known.set(one.id, one);
    return [one.id, `${isolated(one.name)} · ${one.architecture ?? "a CNN"}, ${bytes(one.size)}`];
  }

  function choose(id) {
    mean(control, id ?? ""); // an edited job's may be gone
    chosen();
  }

  function chosen() {
    const one = known.get(control.value);
    pretrained.disabled = Boolean(control.value);
    if (one?.architecture && !model.input.value.trim()) model.set(one.architecture);
    note.textContent = !one ? "" : one.architecture ? `According to the file, its model is ${one.architecture}.` : "The file does not name its model: choose it above.";
  }

  control.addEventListener("change", chosen);
  const ready = fill(control, async () => [["", none], ...await optionsOf("weights", add)], none, wanted).then(chosen);

  return {
    ready,
    parts: h("details", { open: Boolean(wanted) }, h("summary", {}, "Weights of your own"), h("div", { class: "fields" },
      field("weights", "Your own weights", control, { wide: true, extra: note, hint: "A state dict of the model, as safetensors or saved with torch.save." }),
      uploader("weights", "Upload weights", WEIGHTS, { into: control, listed: add, chosen, needed: false }))),
    value: () => control.value,
    fill: (request) => choose(request.weights),
    /** Put into a request which weights are meant; `pretrained` would say nothing beside one's own. */
    into(body) {
      if (control.value) body.weights = control.value;
      else body.pretrained = pretrained.checked;
      return body;
    },
  };
}
