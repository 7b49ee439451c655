// A form: measure a model on a data set, beside others, under corruptions and at several sizes.

import { h } from "./dom.js";
import { clear, field, numeric, select, showErrors, text, tick, together, wrong } from "./form.js";
import { count, date, title } from "./format.js";
import { get, once, post } from "./http.js";
import { fill } from "./submit.js";

const SETS = {
  "": [],
  some: ["gaussian_noise", "motion_blur", "fog", "jpeg_compression"],
  all: ["gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow", "frost", "fog",
    "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"],
};

export function show(main, query) {
  document.title = "Evaluate a model · tcnn";
  const leaving = new AbortController();
  const { signal } = leaving;
  const job = select([["", "Loading…"]]);
  const against = h("select", { multiple: true, size: "4" });
  const dataset = select([["", "Loading…"]]);
  const corruptions = select([["", "None"], ["some", "Four, one of each kind"], ["all", "All fifteen of ImageNet-C"]]);
  const sizes = text({ placeholder: "the model’s own; 160 224 for two" });
  const limit = numeric({ placeholder: "all" });
  const classes = tick(true);
  const summary = h("div", { class: "notice bad", role: "alert", hidden: true });
  const button = h("button", { type: "submit", class: "main" }, "Evaluate");
  const form = h("form", { class: "submit", novalidate: true },
    h("section", { class: "card" }, h("h2", {}, "Models"), h("div", { class: "fields" },
      field("job", "Model", job, { wide: true, hint: "What a job made." }),
      field("against", "Beside it", against, { wide: true, hint: "Any number, or none." }))),
    h("section", { class: "card" }, h("h2", {}, "Images"), h("div", { class: "fields" },
      field("dataset", "Data set", dataset, { wide: true, hint: "Of one that a model was trained on, the part that its training held out is measured." }),
      field("config.corruptions", "Corruptions", corruptions, { half: true, hint: "At all five severities; each is a pass over the images." }),
      field("config.sizes", "Image sizes", sizes, { half: true, hint: "Pixels a side; several make a curve." }),
      field("config.limit", "Images at most", limit, { hint: "The first of every class in turn." }),
      field("config.per_class", "Class by class", classes))),
    summary, h("div", { class: "actions" }, button));
  main.append(h("div", { class: "head" }, h("h1", {}, "Evaluate a model")),
    h("p", { class: "lead" }, "Accuracy on images that a model has not seen, beside other models: by class, by corruption and severity, by size."), form);
  form.addEventListener("input", ({ target }) => target.dataset.field && wrong(target, ""));

  const made = get("jobs?limit=100&status=succeeded", { signal }).then((page) =>
    page.data.filter((one) => one.kind !== "evaluate").map((one) => [one.id, `${title(one)} · ${one.kind}, ${date(one.finished_at)}`]));
  fill(job, () => made, "No job has made a model yet", query.get("job"));
  fill(against, () => made, "No job has made a model yet").then(() => (against.selectedIndex = -1));
  fill(dataset, async () => (await get("datasets?limit=100", { signal })).data.map((one) => [one.id, `${one.name} · ${count(one.images)} images, ${count(one.classes.length)} classes`]),
    "None was uploaded yet: the fine-tuning form takes one");

  function request() {
    const config = { per_class: classes.checked };
    const [body] = together(() => {
      if (!job.value) throw Object.assign(new Error("Choose a model."), { control: job });
      return { job: job.value, config };
    }, () => {
      if (!dataset.value) throw Object.assign(new Error("Choose a data set."), { control: dataset });
    }, () => {
      const given = sizes.value.split(/[\s,;]+/).filter(Boolean).map(Number);
      if (given.some((one) => !Number.isInteger(one) || one < 1)) throw Object.assign(new Error("Expected whole numbers of pixels, such as 160 224."), { control: sizes });
      if (given.length) config.sizes = given;
    });
    if (corruptions.value) config.corruptions = SETS[corruptions.value];
    if (limit.value.trim()) config.limit = Number.isFinite(Number(limit.value)) ? Number(limit.value) : limit.value.trim();
    const others = [...against.selectedOptions].map((one) => one.value).filter((one) => one && one !== job.value);
    return { ...body, dataset: dataset.value, ...(others.length && { against: others.map((one) => ({ job: one })) }) };
  }

  let idempotency = { body: "", key: "" };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clear(form);
    summary.hidden = true;
    let body;
    try {
      body = request();
    } catch (error) {
      if (!error.found) throw error;
      for (const one of error.found) wrong(one.control, one.message);
      error.found[0].control.focus();
      return;
    }
    const said = JSON.stringify(body);
    if (said !== idempotency.body) idempotency = { body: said, key: once() };
    button.disabled = true;
    try {
      location.hash = `#/jobs/${(await post("evaluate", body, { headers: { "Idempotency-Key": idempotency.key }, signal })).id}`;
    } catch (error) {
      if (error.name === "AbortError") return;
      const rest = showErrors(form, error.fields ?? []);
      summary.hidden = !rest.length && Boolean(error.fields?.length);
      summary.replaceChildren(h("p", {}, rest.length ? rest.join("; ") : error.message));
    } finally {
      button.disabled = false;
    }
  });
  return () => leaving.abort();
}
