// Two forms: convert a model (and fine-tune it in the same job), or fine-tune what is there.

import { h, say } from "./dom.js";
import { bytes, count, date, title } from "./format.js";
import { clear, field, numeric, read, rewrite, select, settings, showErrors, text, tick, together, written, wrong } from "./form.js";
import { get, once, post } from "./http.js";
import { modelPicker } from "./models.js";
import { planned } from "./plan.js";
import { ownWeights } from "./own-weights.js";
import { ARCHIVES, uploader } from "./uploads.js";

const PRESETS = {
  quick: { word: "Quick: minutes on small data", epochs: 5, batch_size: 64, lr: 0.0005, size: "the model’s" },
  cifar: { word: "CIFAR: images of 32×32", epochs: 10, batch_size: 128, lr: 0.002, size: 32 },
  paper: { word: "Paper: the full recipe, for large data", epochs: 50, batch_size: 1024, lr: 0.0001, size: "the model’s" },
};
const QUEUEING = ["priority", "max_attempts", "max_runtime", "stall_minutes", "depends_on", "webhook"];

export function show(main, kind, query = new URLSearchParams()) {
  const leaving = new AbortController();
  const form = h("form", { class: "submit", novalidate: true });
  const page = kind === "transform" ? transform(query) : finetune(form, query, leaving.signal);
  const name = kind === "transform" ? "Convert a model" : "Fine-tune a model";
  document.title = `${name} · tcnn`;
  const summary = h("div", { class: "notice bad", role: "alert", hidden: true });
  const button = h("button", { type: "submit", class: "main" }, kind === "transform" ? "Convert" : "Fine-tune");
  const ahead = h("button", { type: "button" }, "What will it take?");
  const answer = h("div", { role: "status" });
  const called = { name: text(), tags: text() };
  const queueing = {
    priority: numeric({ placeholder: "0" }),
    max_attempts: numeric({ placeholder: "3" }),
    max_runtime: numeric({ placeholder: "the server’s" }),
    stall_minutes: numeric({ placeholder: "the server’s" }),
  };
  form.append(
    ...page.parts,
    h("details", { class: "card" }, h("summary", {}, "What it is called, how it is queued"), h("div", { class: "fields" },
      field("name", "Name", called.name, { half: true, hint: "Otherwise it is called after its model." }),
      field("tags", "Tags", called.tags, { half: true, hint: "With commas between." })),
      h("div", { class: "fields" },
      field("priority", "Priority", queueing.priority, { hint: "−100 to 100; higher ones run first." }),
      field("max_attempts", "Attempts", queueing.max_attempts, { hint: "Tries before the job counts as failed." }),
      field("max_runtime", "Longest run", queueing.max_runtime, { hint: "Seconds; then it is stopped and fails." }),
      field("stall_minutes", "Longest silence", queueing.stall_minutes, { hint: "Minutes without progress; then it is killed and tried again." }))),
    summary, answer, h("div", { class: "actions" }, button, ahead),
  );
  main.append(h("div", { class: "head" }, h("h1", {}, name)), h("p", { class: "lead" }, page.lead), form);

  let rest = {};
  // What was written stays with its place in the history: whoever goes back finds it again.
  const keep = () => history.replaceState({ ...history.state, written: written(form), rest }, "");
  const touched = new Set();
  for (const event of ["input", "change"]) {
    form.addEventListener(event, ({ target, isTrusted }) => {
      if (target.dataset.field) wrong(target, ""); // what it said was about what was written before
      answer.replaceChildren();
      ahead.hidden = page.trains?.() === false;
      if (!isTrusted) return;
      touched.add(target);
      keep();
    });
  }
  const before = history.state?.written;
  (async () => {
    if (before) {
      rest = history.state.rest ?? {};
      rewrite(form, before);
      await page.ready();
      rewrite(form, before, touched);
    } else if (query.get("from")) {
      const { request } = await get(`jobs/${query.get("from")}`, { signal: leaving.signal });
      rest = Object.fromEntries(["depends_on", "webhook"].filter((name) => name in request).map((name) => [name, request[name]]));
      for (const [name, control] of Object.entries(queueing)) control.value = request[name] ?? "";
      await page.fill(request);
      keep();
    }
  })().catch((error) => {
    if (error.name === "AbortError") return;
    summary.hidden = false;
    summary.replaceChildren(h("p", {}, error.message));
  });

  ahead.hidden = page.trains?.() === false;
  let idempotency = { body: "", key: "" };
  /** Do something with what the form says; what is wrong with it is told beside its fields. `prefix` is that of their names. */
  async function send(control, done, prefix = "") {
    clear(form);
    summary.hidden = true;
    let body;
    control.disabled = true;
    try {
      await page.ready(); // until then a list has nothing to choose from
      [body] = together(page.body);
    } catch (error) {
      if (!error.found) throw error;
      for (const one of error.found) wrong(one.control, one.message);
      error.found[0].control.focus();
      return;
    } finally {
      control.disabled = false;
    }
    Object.assign(body, rest);
    for (const [name, control] of Object.entries(queueing)) put(body, name, read(control));
    put(body, "name", read(called.name));
    const tags = called.tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
    if (tags.length) body.tags = tags;
    control.disabled = true;
    try {
      await done(body);
    } catch (error) {
      if (error.name === "AbortError") return;
      const own = (error.fields ?? []).map(({ field, message }) => ({ field: field.replace(prefix, ""), message: message.replace(prefix, "") }));
      const rest = showErrors(form, own);
      if (!own.length || rest.length) {
        summary.hidden = false;
        summary.replaceChildren(h("p", {}, rest.length ? rest.join("; ") : error.message));
      }
    } finally {
      control.disabled = false;
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(button, async (body) => {
      // Sent again after a lost answer, the same request is done once.
      const said = JSON.stringify(body);
      if (said !== idempotency.body) idempotency = { body: said, key: once() };
      const job = await post(kind, body, { headers: { "Idempotency-Key": idempotency.key }, signal: leaving.signal });
      location.hash = `#/jobs/${job.id}`;
    });
  });
  ahead.addEventListener("click", () => send(ahead, async (body) => {
    answer.replaceChildren(h("p", { class: "hint" }, "Looking at the model…"));
    try {
      answer.replaceChildren(planned(await post("plan", { [kind]: body }, { signal: leaving.signal })));
    } catch (error) {
      answer.replaceChildren();
      throw error;
    }
  }, `${kind}.`));
  return () => leaving.abort();
}

function transform(query) {
  const model = modelPicker();
  const own = {
    pretrained: tick(true),
    num_classes: numeric({ placeholder: "the weights’ own" }),
    stage: numeric({ placeholder: "−1, the last" }),
    target: text({ placeholder: "layer4\\.0\\..*" }),
    temperature: numeric({ placeholder: "1/46 = 0.0217" }),
    head_dim: numeric({ placeholder: "automatic" }),
    content_heads: numeric({ placeholder: "0" }),
    seed: numeric({ placeholder: "0" }),
  };
  const weights = ownWeights({ model, pretrained: own.pretrained, wanted: query.get("weights") });
  const stride = select([["keep", "Keep: equivalent to the CNN"], ["remove", "Remove: as in the paper"], ["dilate", "Remove, and dilate what follows"]]);
  const queryKey = select([["normal", "Normal, small"], ["mimetic", "Mimetic: like looks for like"]]);
  const position = select([["isotropic", "Around a centre (isotropic)"], ["quadratic", "Gaussian of any shape (quadratic)"], ["relative", "Learned shifts (relative)"], ["relative-content", "Learned shifts, by content too"]]);
  const also = tick(false, { id: "also-finetune" });
  const training = trainingFields("finetune.");
  const box = h("div", { hidden: true }, training.parts);
  also.addEventListener("change", () => {
    box.hidden = !also.checked;
    if (also.checked) training.load();
  });
  let more = {}; // settings of a job that is edited for which the form has no field
  return {
    trains: () => also.checked,
    ready: () => Promise.all([training.ready(), weights.ready]),
    async fill(request) {
      model.set(request.model);
      await weights.fill(request);
      own.pretrained.checked = request.pretrained ?? true;
      stride.value = request.stride ?? "keep";
      queryKey.value = request.query_key ?? "normal";
      position.value = request.position ?? "isotropic";
      more = { ...request };
      for (const name of [...QUEUEING, ...Object.keys(own), "model", "weights", "stride", "query_key", "position", "finetune"]) delete more[name];
      for (const [name, control] of Object.entries(own)) if (name !== "pretrained") control.value = request[name] ?? "";
      also.checked = Boolean(request.finetune);
      also.dispatchEvent(new Event("change"));
      if (request.finetune) await training.fill(request.finetune);
    },
    lead: "Pick a pretrained CNN of timm’s. The convolutions of its last stage become gated positional self-attention that computes the same function; the job checks that it does.",
    parts: [
      h("section", { class: "card" }, h("h2", {}, "Model"), h("div", { class: "fields" },
        field("model", "Model", model.input, { wide: true, extra: model.extra }),
        field("pretrained", "Pretrained weights", own.pretrained, { half: true, hint: "Without them the weights are random." }),
        field("stride", "Stride of the stage", stride, { half: true })),
        weights.parts,
        h("details", {}, h("summary", {}, "More about the conversion"), h("div", { class: "fields" },
          field("num_classes", "Classes", own.num_classes),
          field("stage", "Stage", own.stage, { hint: "Counted from 0; −1 is the last." }),
          field("target", "Convolutions by name", own.target, { half: true, hint: "A regular expression; replaces the stage." }),
          field("temperature", "Temperature τ", own.temperature, { hint: "1/46 is the CNN, 1 is the paper’s start." }),
          field("head_dim", "Head width", own.head_dim, { hint: "Channels of a head’s queries and keys." }),
          field("content_heads", "Content heads", own.content_heads, { hint: "Beside the taps; they add nothing at first." }),
          field("query_key", "Query and key weights", queryKey, { half: true }),
          field("position", "Positional attention", position, { half: true }),
          field("seed", "Seed", own.seed)))),
      h("section", { class: "card" }, h("h2", {}, "Fine-tuning"),
        h("div", { class: "field tick" }, also, h("label", { for: "also-finetune" }, "Fine-tune it in the same job")), box),
    ],
    body() {
      const [body, trained] = together(() => {
        if (!model.input.value.trim()) throw Object.assign(new Error("Choose a model."), { control: model.input });
        const made = weights.into({ ...more, model: model.input.value.trim(), stride: stride.value, query_key: queryKey.value });
        if (position.value !== "isotropic") made.position = position.value; // older workers know no other, and refuse the word
        for (const [name, control] of Object.entries(own)) if (name !== "pretrained") put(made, name, read(control));
        return made;
      }, () => (also.checked ? training.body() : null));
      if (trained) body.finetune = trained;
      return body;
    },
  };
}

function finetune(form, query, signal) {
  const wanted = query.get("job");
  const begin = ["checkpoint", "weights"].find((name) => query.has(name));
  const jobs = select([["", "Loading…"]]);
  const checkpoints = select([["", "Loading…"]]);
  const model = modelPicker();
  const pretrained = tick(true);
  const weights = ownWeights({ model, pretrained, wanted: query.get("weights") });
  const sources = {
    job: h("div", { class: "fields" }, field("job", "Job", jobs, { wide: true, hint: "A conversion or a fine-tuning; one that has not ended is waited for." })),
    checkpoint: h("div", { class: "fields", hidden: true }, field("checkpoint", "Checkpoint", checkpoints, { wide: true }),
      uploader("checkpoints", "Upload a checkpoint", ".safetensors", (made) => {
        checkpoints.prepend(h("option", { value: made.id }, describeCheckpoint(made)));
        checkpoints.value = made.id;
      })),
    model: h("div", { class: "fields", hidden: true }, field("model", "Model", model.input, { wide: true, extra: model.extra }),
      field("pretrained", "Pretrained weights", pretrained, { wide: true, hint: "Without them the weights are random." }), h("div", { class: "field wide" }, weights.parts)),
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
    const page = await get("jobs?limit=100", { signal });
    const made = page.data.filter((job) => job.status === "succeeded" && job.result?.checkpoint);
    const coming = page.data.filter((job) => ["queued", "running"].includes(job.status) && job.kind !== "evaluate");
    return [...made.map((job) => [job.id, `${title(job)} · ${job.kind}, ${date(job.finished_at)}`]),
      ...coming.map((job) => [job.id, `${title(job)} · ${job.kind}, ${job.status}: starts when it is done`])];
  }, "No job has made a model yet", wanted);
  const filledToo = fill(checkpoints, async () => (await get("checkpoints?limit=100", { signal })).data.map((one) => [one.id, describeCheckpoint(one)]), "None was uploaded yet", query.get("checkpoint"));

  return {
    lead: "Train a converted model on your own images: its temperature rises from 1/46 to 1, and its heads learn to look further than the convolution could.",
    parts: [
      h("section", { class: "card" }, h("h2", {}, "What to begin with"),
        h("fieldset", { class: "choice" }, h("legend", {}, "Begin with"), radios), Object.values(sources)),
      h("section", { class: "card" }, h("h2", {}, "Training"), training.parts),
    ],
    ready: () => Promise.all([filled, filledToo, weights.ready, training.ready()]),
    async fill(request) {
      await Promise.all([filled, filledToo]);
      const source = ["job", "checkpoint", "model"].find((name) => request[name]) ?? "job";
      const radio = form.querySelector(`#source-${source}`);
      radio.checked = true;
      radio.dispatchEvent(new Event("change"));
      if (source === "model") model.set(request.model);
      else choose({ job: jobs, checkpoint: checkpoints }[source], request[source]);
      pretrained.checked = request.pretrained ?? true;
      await weights.fill(request);
      await training.fill(request);
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

/** Data set, preset, the settings that most people change, and room for all others. */
function trainingFields(prefix, wanted) {
  const dataset = select([["", "Loading…"]]);
  const other = text({ placeholder: "hfds/…, wds/…, a path that the server allows" });
  const otherPart = field(`${prefix}dataset`, "Its name", other, { hint: "As the server’s settings allow it." });
  otherPart.hidden = true;
  const preset = select(Object.entries(PRESETS).map(([value, { word }]) => [value, word]));
  const common = { epochs: numeric(), batch_size: numeric(), lr: numeric(), size: numeric(), val_split: numeric({ placeholder: "0.1" }) };
  const val = text({ placeholder: "the data set’s own" });
  const baseline = h("input", { type: "checkbox" });
  const more = h("textarea", { rows: "4", spellcheck: "false", placeholder: "weight_decay=0.01\ninit=impulse\nconversion.position=quadratic" });
  const sets = new Map();
  let loading = null;
  let rest = {};

  function hint() {
    for (const name of ["epochs", "batch_size", "lr", "size"]) common[name].placeholder = PRESETS[preset.value][name];
  }

  function chosen() {
    otherPart.hidden = dataset.value !== "other";
    const one = sets.get(dataset.value);
    if (one && !("val" in one.splits) && !common.val_split.value) common.val_split.value = "0.1";
  }

  function add(one) {
    sets.set(one.id, one);
    return [one.id, `${one.name} · ${count(one.images)} images, ${count(one.classes.length)} classes`];
  }

  function load() {
    loading ??= fill(dataset, async () => {
      const page = await get("datasets?limit=100");
      return [...page.data.map(add), ["other", "Another one, by name…"]];
    }, "None was uploaded yet", wanted).then(chosen);
    return loading;
  }

  dataset.addEventListener("change", chosen);
  preset.addEventListener("change", hint);
  hint();
  return {
    load,
    ready: () => loading,
    async fill(asked) {
      await load();
      preset.value = asked.preset ?? "paper";
      hint();
      if ([...dataset.options].some((option) => option.value === asked.dataset)) dataset.value = asked.dataset;
      else [dataset.value, other.value] = ["other", asked.dataset];
      const config = { ...asked.config };
      for (const [name, control] of Object.entries(common)) {
        control.value = typeof config[name] === "object" ? "" : config[name] ?? "";
        if (control.value) delete config[name];
      }
      more.value = lines(config).join("\n");
      if (more.value) more.closest("details").open = true;
      val.value = asked.val ?? "";
      baseline.checked = Boolean(asked.baseline);
      rest = "num_workers" in asked ? { num_workers: asked.num_workers } : {};
      otherPart.hidden = dataset.value !== "other";
    },
    parts: [
      h("div", { class: "fields" },
        field(`${prefix}dataset`, "Data set", dataset, { wide: true }), otherPart,
        uploader("datasets", "Upload a data set", ARCHIVES, (made) => {
          const [value, word] = add(made);
          dataset.prepend(h("option", { value }, word));
          dataset.value = value;
          chosen();
        }, "A zip or tar of class folders, or of train/ and val/ with class folders in them.")),
      h("div", { class: "fields" },
        field(`${prefix}preset`, "Preset", preset, { wide: true }),
        field(`${prefix}config.epochs`, "Epochs", common.epochs),
        field(`${prefix}config.batch_size`, "Batch size", common.batch_size),
        field(`${prefix}config.lr`, "Learning rate", common.lr),
        field(`${prefix}config.size`, "Image size", common.size, { hint: "Pixels." }),
        field(`${prefix}config.val_split`, "Held out for validation", common.val_split, { half: true, hint: "A share, where the data set has no validation images of its own." }),
        field(`${prefix}val`, "Validation data", val, { half: true, hint: "Another data set’s id or name." })),
      field(`${prefix}baseline`, "Fine-tune the CNN in the same way, too", baseline, { hint: "Twice the time; shows what attention is worth, apart from the training." }),
      h("details", {}, h("summary", {}, "All other settings"), h("div", { class: "fields" },
        field(`${prefix}config`, "Settings, NAME=VALUE, one a line", more, { wide: true, hint: "Every setting of FinetuneConfig; the API’s page lists them." }))),
    ],
    body() {
      const body = { preset: preset.value, ...rest };
      together(() => {
        body.dataset = dataset.value === "other" ? other.value.trim() : dataset.value;
        if (!body.dataset) throw Object.assign(new Error("Choose a data set, or upload one."), { control: dataset.value === "other" ? other : dataset });
      }, () => {
        try {
          body.config = settings(more.value);
        } catch (error) {
          more.closest("details").open = true;
          throw Object.assign(error, { control: more });
        }
      });
      put(body, "val", read(val));
      if (baseline.checked) body.baseline = true;
      for (const [name, control] of Object.entries(common)) put(body.config, name, read(control));
      return body;
    },
  };
}

/** Choose what an edited job had, even if it is not on the list any more. */
function choose(control, value) {
  if (![...control.options].some((option) => option.value === value)) control.prepend(h("option", { value }, value));
  control.value = value;
}

/** Nested settings as NAME=VALUE, which `settings` reads again. */
function lines(config, prefix = "") {
  return Object.entries(config).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? lines(value, `${prefix}${name}.`)
      : [`${prefix}${name}=${JSON.stringify(value)}`]);
}

export function describeCheckpoint(one) {
  return `${one.name} · ${one.base_model}, ${bytes(one.size)}`;
}

function put(body, name, value) {
  if (value !== null && value !== "") body[name] = value;
}

/** Options from the server; says so when there are none, or when they cannot be had. */
export async function fill(control, fetched, none, wanted) {
  try {
    const options = await fetched();
    const real = options.filter(([value]) => value !== "other");
    control.replaceChildren(
      ...(real.length ? [] : [h("option", { value: "" }, none)]),
      ...options.map(([value, word]) => h("option", { value, selected: value === wanted }, word)));
  } catch (error) {
    if (error.name !== "AbortError") control.replaceChildren(h("option", { value: "" }, error.message));
  }
}
