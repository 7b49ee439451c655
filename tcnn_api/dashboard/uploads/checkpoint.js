// One uploaded model: a checkpoint and what `tcnn info` tells of it, or a CNN's weights and the tensors in them.

import { announce, h, isolated } from "../dom.js";
import { bytes, count, date, number, percent, short, some } from "../components/format.js";
import { ask, get } from "../server/http.js";
import { card, pairs, refused, sure, trouble } from "../components/parts.js";
import { scrolling } from "../components/scrolling.js";
import { standing } from "../components/tenants.js";
import { usedBy } from "./used-by.js";

const SHOWN = 40; // class names

const KINDS = {
  checkpoints: {
    word: "checkpoint", main: (one) => [["Fine-tune it", `#/finetune?checkpoint=${one.id}`], ["Evaluate it", `#/evaluate?checkpoint=${one.id}`]],
    parts: (one, signal) => [story(one, signal)],
  },
  weights: {
    word: "weights file", main: (one) => [["Convert it", `#/transform?weights=${one.id}`], ["Fine-tune it", `#/finetune?weights=${one.id}`], ["Evaluate it", `#/evaluate?weights=${one.id}`]],
    parts: (one) => [plain(one), tensors(one)],
  },
};

export function show(main, kind, id) {
  const { word, main: ways, parts } = KINDS[kind];
  document.title = "Checkpoint · tcnn";
  const leaving = new AbortController();
  main.append(h("p", { class: "loading" }, "Loading…"));
  const load = () => get(`${kind}/${id}`, { signal: leaving.signal }).then((one) => {
    document.title = `${one.name} · tcnn`;
    const refusal = h("div", { role: "alert" });
    const why = h("div");
    standing(main, word, one.tenant, why);
    main.replaceChildren(
      h("div", { class: "head" }, h("div", {}, h("p", { class: "crumb" }, h("a", { href: "#/checkpoints" }, "Checkpoints"), " / ", h("code", {}, id)), h("h1", {}, one.name), why),
        h("div", { class: "actions changes" },
          ways(one).map(([name, href], place) => h("a", { class: `button${place ? "" : " main"}`, href }, name)),
          h("button", { type: "button", class: "danger", onclick: () => remove(kind, one, word, refusal) }, "Delete"))),
      refusal, ...parts(one, leaving.signal), usedBy(id, leaving.signal));
  }).catch((error) => {
    if (error.name === "AbortError") return;
    main.replaceChildren(h("h1", {}, error.status === 404 ? `There is no such ${word}` : "It cannot be shown"), trouble(error, error.status === 404 ? null : load), h("p", {}, h("a", { href: "#/checkpoints" }, "All checkpoints")));
  });
  load();
  return () => leaving.abort();
}

async function remove(kind, one, word, refusal) {
  refusal.replaceChildren();
  if (!(await sure({ title: `Delete this ${word}?`, text: `${isolated(one.name)}: the file is deleted. Jobs that used it are kept, with their results. This cannot be undone.` }))) return;
  try {
    await ask(`${kind}/${one.id}`, { method: "DELETE" });
    announce(`The ${word} was deleted.`);
    location.replace("#/checkpoints");
  } catch (error) {
    refused(refusal, error);
  }
}

function facts(title, entries, ...more) {
  return card(title, h("dl", { class: "facts roomy" }, pairs(entries)), more);
}

function file(one) {
  return [["Size", bytes(one.size)], ["Uploaded", date(one.created_at)], ["SHA-256", h("code", { title: one.sha256 }, `${one.sha256.slice(0, 12)}…`)]];
}

/** What the file says of itself; read when the page is opened. */
function story(one, signal) {
  const reading = h("div", {}, h("p", { class: "loading" }, "Reading the file…"));
  const element = facts("Details", [["Converted from", one.base_model], ["Attention layers", count(one.layers)], ["Parameters", short(one.parameters)], ["Classes", count(one.num_classes)], ...file(one)], reading);
  const load = () => get(`checkpoints/${one.id}/info`, { signal }).then((found) => {
    reading.remove();
    element.querySelector("dl").append(...pairs([
      ["Source weights", { pretrained: "Pretrained", random: "Random", file: "From a file" }[found.weights] ?? found.weights],
      ["Stage", found.stage && `${found.stage}, stride ${found.stride ?? "keep"}`],
      ["Parameters before", found.parameters_before && short(found.parameters_before)],
      ["Temperature τ", found.temperature && [...new Set(found.temperature.map((heat) => number(heat)))].join(" to ")],
      ["Image", found.input_size?.join("×")], ["Licence", found.license], ["Written by", found.tcnn_version && `tcnn ${found.tcnn_version}`],
    ]));
    element.after(...[checked(found.verification), trained(found.training), trained(found.source_training, "How its CNN was fine-tuned"), labels(found.label_names)].filter(Boolean));
  }).catch((error) => error.name !== "AbortError" && reading.replaceChildren(trouble(error, load)));
  load();
  return element;
}

function checked(found) {
  if (!found) return null;
  return facts("Verification at conversion", [
    ["Compared with its CNN", h("span", { class: `verdict ${found.passed ? "good" : "bad"}` }, found.passed ? "✓ The same function" : "✕ Not the same function")],
    ...Object.entries(found.errors).map(([type, error]) => [`Largest error, ${type}`, number(error, 2)]), ["Drift at τ = 1, untrained", found.drift === null ? null : percent(found.drift)],
  ]);
}

function trained(found, title = "How it was fine-tuned") {
  if (!found) return null;
  return facts(title, [["Images", found.data], ["Epoch", found.epoch && count(found.epoch)], ["Accuracy then (top-1)", found.top1 === null ? null : percent(found.top1)],
    ["Measured on", found.images && some(found.images, "image")]]);
}

function labels(names) {
  if (!names?.length) return null;
  const more = names.length - SHOWN;
  return h("section", { class: "card" }, h("h2", {}, "Classes"), h("p", { class: "names" }, names.slice(0, SHOWN).map(isolated).join(", "), more > 0 && ` and ${count(more)} more`));
}

function plain(one) {
  const types = Object.entries(one.dtypes);
  return facts("Details", [["Model, according to the file", one.architecture ?? "Not given: you choose it when you convert"], ["Tensors", count(one.tensors)], ["Values", short(one.parameters)],
    ["Types", types.map(([name, tensors]) => (types.length > 1 ? `${name} ${count(tensors)}` : name)).join(", ")], ...file(one)],
  h("p", { class: "hint" }, "It was read without unpickling and is stored as safetensors. The job that converts it first checks whether it fits the model."));
}

function tensors({ shapes, tensors: all }) {
  return h("section", { class: "card" }, h("h2", {}, "Tensors"),
    scrolling("Tensors", { rows: shapes.length }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Name"), h("th", { scope: "col" }, "Shape"))),
      h("tbody", {}, shapes.map(([name, shape]) => h("tr", {}, h("th", { scope: "row", class: "long" }, h("code", {}, name)), h("td", {}, shape.join("×") || "scalar")))))),
    all > shapes.length && h("p", { class: "muted" }, `and ${count(all - shapes.length)} more.`));
}
