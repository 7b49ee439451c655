// The fields of a training: data set, preset, the settings that most people change, and room for all others.

import { h } from "../dom.js";
import { optionsOf } from "../components/every.js";
import { describeDataset } from "../components/format.js";
import { blaming, field, numeric, over, put, putAll, read, select, settings, text, together, whole } from "../components/form.js";
import { choose, fill } from "../components/lists.js";
import { ARCHIVES, uploader } from "../uploads/uploads.js";

const PRESETS = {
  quick: { word: "Quick: minutes on small data", epochs: 5, batch_size: 64, lr: 0.0005, size: "model default" },
  cifar: { word: "CIFAR: images of 32×32", epochs: 20, batch_size: 128, lr: 0.002, size: 32 },
  paper: { word: "Paper: the full recipe, for large data", epochs: 50, batch_size: 1024, lr: 0.0001, size: "model default" },
};

/** `prefix` is that of the fields' names at the server, `wanted` the id of the data set to begin with. */
export function trainingFields(prefix, wanted) {
  const dataset = select([["", "Loading…"]]);
  const other = text({ placeholder: "hfds/…, wds/…, a path that the server allows" });
  const otherPart = field(`${prefix}dataset`, "Its name", other, { hint: "It must be allowed by the server’s settings." });
  otherPart.hidden = true;
  const preset = select(Object.entries(PRESETS).map(([value, { word }]) => [value, word]));
  const common = { epochs: whole(), batch_size: whole(), lr: numeric(), size: whole(), val_split: numeric({ placeholder: "0.1" }) };
  const val = text({ placeholder: "from the data set" });
  const baseline = h("input", { type: "checkbox" });
  const more = h("textarea", { rows: "4", spellcheck: "false", placeholder: "weight_decay=0.01\nconversion.position=quadratic" });
  const init = select([["default", "timm’s default"], ["impulse", "Impulses (ViT, ConvMixer)"], ["mimetic", "Mimetic (ViT)"], ["convolution", "As convolutions (ConViT)"], ["random", "Random positions (ConViT)"]]);
  const sets = new Map();
  let loading = null;
  let rest = {};

  function hint() {
    for (const name of ["epochs", "batch_size", "lr", "size"]) common[name].placeholder = PRESETS[preset.value][name];
  }

  function chosen() {
    otherPart.hidden = dataset.value !== "other";
    // What is held out where nothing is written; written here it would stay when another data set is chosen.
    common.val_split.placeholder = "val" in (sets.get(dataset.value)?.splits ?? {}) ? "none: it has its own" : "0.1";
  }

  function add(one) {
    sets.set(one.id, one);
    return [one.id, describeDataset(one)];
  }

  function load() {
    loading ??= fill(dataset, async () => [...await optionsOf("datasets", add), ["other", "Another one, by name…"]],
      "None uploaded yet", wanted).then(chosen);
    return loading;
  }

  dataset.addEventListener("change", chosen);
  preset.addEventListener("change", hint);
  hint();
  return {
    load,
    ready: () => loading,
    fill(asked) {
      load();
      preset.value = asked.preset ?? "paper";
      hint();
      if (/^ds_/.test(asked.dataset)) choose(dataset, asked.dataset);
      else {
        choose(dataset, "other");
        other.value = asked.dataset;
      }
      const config = { ...asked.config };
      for (const [name, control] of Object.entries(common)) {
        control.value = typeof config[name] === "object" ? "" : config[name] ?? "";
        if (control.value) delete config[name];
      }
      init.value = config.init ?? "default";
      delete config.init;
      if (init.value !== "default") init.closest("details").open = true;
      more.value = lines(config).join("\n");
      if (more.value) more.closest("details").open = true;
      val.value = asked.val ?? "";
      baseline.checked = Boolean(asked.baseline);
      rest = "num_workers" in asked ? { num_workers: asked.num_workers } : {};
      chosen();
    },
    parts: [
      h("div", { class: "fields" },
        field(`${prefix}dataset`, "Data set", dataset, { wide: true }), otherPart,
        uploader("datasets", "Upload a data set", ARCHIVES, { into: dataset, listed: add, chosen, hint: "A zip or tar with one folder per class, or with train/ and val/ that contain such folders." })),
      h("div", { class: "fields" },
        field(`${prefix}preset`, "Preset", preset, { wide: true }),
        field(`${prefix}config.epochs`, "Epochs", common.epochs),
        field(`${prefix}config.batch_size`, "Batch size", common.batch_size),
        field(`${prefix}config.lr`, "Learning rate", common.lr),
        field(`${prefix}config.size`, "Image size", common.size, { hint: "Pixels." }),
        field(`${prefix}config.val_split`, "Held out for validation", common.val_split, { half: true, hint: "A fraction, if the data set has no validation images of its own." }),
        field(`${prefix}val`, "Validation data", val, { half: true, hint: "Another data set’s id or name." })),
      field(`${prefix}baseline`, "Fine-tune the CNN in the same way as well", baseline, { hint: "Takes twice as long; separates the effect of attention from that of the training." }),
      h("details", {}, h("summary", {}, "All other settings"), h("div", { class: "fields" },
        field(`${prefix}config.init`, "Initialisation of an untrained transformer", init, { wide: true, hint: "For a ViT, ConViT or ConvMixer with random weights." }),
        field(`${prefix}config`, "Settings, one NAME=VALUE per line", more, { wide: true, hint: "Any setting of FinetuneConfig; the API page lists them." }))),
    ],
    body() {
      const body = { preset: preset.value, ...rest };
      const config = {};
      together(() => {
        body.dataset = dataset.value === "other" ? other.value.trim() : dataset.value;
        if (!body.dataset) throw Object.assign(new Error("Choose a data set, or upload one."), { control: dataset.value === "other" ? other : dataset });
      }, () => {
        body.config = blaming(more, () => settings(more.value));
      }, () => putAll(config, common));
      if (init.value !== "default") config.init = init.value;
      blaming(more, () => over(body.config, config));
      put(body, "val", read(val));
      if (baseline.checked) body.baseline = true;
      return body;
    },
  };
}

/** Nested settings as NAME=VALUE, which `settings` reads again. */
function lines(config, prefix = "") {
  return Object.entries(config).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? lines(value, `${prefix}${name}.`)
      : [`${prefix}${name}=${JSON.stringify(value)}`]);
}
