// What a job made: its scores, the comparison, the model to try, the equivalence, files and notes.

import { h } from "../dom.js";
import { beforeAfter } from "./before-after.js";
import { bytes, count, percent } from "../components/format.js";
import { equivalence } from "./equivalence.js";
import { evaluation } from "./evaluation.js";
import { withNames } from "../components/names.js";
import { card, fileLink, pairs } from "../components/parts.js";
import { key, save } from "../server/http.js";
import { forPages } from "../server/wording.js";
import { tryIt } from "./try-it.js";

/** Once for every result: drawn again, what is open in it would close under the reader's hand. */
export function drawResults(job, place, url) {
  const drawn = job.result ? job.result.checkpoint?.sha256 ?? job.finished_at : "";
  if (place.dataset.drawn === drawn) return;
  place.dataset.drawn = drawn;
  place.replaceChildren();
  if (!job.result) return;
  const { checkpoint, files, verification, metrics, notes } = job.result;
  const keyed = Boolean(key.get());
  if (metrics?.before_after) place.append(beforeAfter(metrics.before_after, job));
  const scores = score(job, metrics);
  if (scores.length) place.append(card("Result", h("dl", { class: "facts big" }, pairs(scores))));
  if (checkpoint) place.append(tryIt(job.id));
  if (job.kind === "evaluate" && metrics) place.append(...evaluation(metrics, job).filter(Boolean));
  if (verification) place.append(equivalence(verification, metrics?.conversion));
  if (files.length) {
    place.append(card("Files",
      h("ul", { class: "files" }, files.map((file) => h("li", {},
        h("span", {}, fileLink(file.url.slice(1), file.name, { saving: save, keyed }), checkpoint?.sha256 === file.sha256 && h("span", { class: "tag" }, "the model")),
        h("span", { class: "muted" }, bytes(file.size)),
        h("code", { class: "sha", title: `SHA-256 ${file.sha256}` }, "SHA-256 ", file.sha256)))),
      h("p", {}, fileLink(`${url}/archive`, `${job.id}.zip`, { saving: save, keyed, word: "Download all" }), " as one zip, with the log."),
      h("p", {}, keyed ? fileLink(`${url}/report`, `${job.id}.html`, { saving: save, keyed, word: "The report" }) : h("a", { href: `${url}/report`, target: "_blank", rel: "noopener" }, "The report"),
        job.kind === "evaluate" ? " shows all results on one page: by model, size and corruption. It takes a few seconds to make."
          : " summarises the run on one page: conversion, curves, gates, attention maps. It takes a few seconds to make."),
    ));
  }
  if (notes.length) place.append(card("Notes", h("ul", {}, notes.map((note) => h("li", {}, withNames(forPages(note)))))));
}

function score(job, metrics) {
  if (!metrics) return [];
  if (job.kind === "evaluate") {
    const { rows = [] } = metrics;
    if (rows.length !== 1) return []; // the table has them side by side
    const [{ clean, corruption_top1: corrupted }] = rows;
    return [["Accuracy (top-1)", clean?.top1], ["Top-5", clean?.top5], ["Corrupted, top-1", corrupted]]
      .filter(([, share]) => typeof share === "number").map(([word, share]) => [word, percent(share)]);
  }
  const shown = [];
  const best = metrics.best_top1 ?? metrics.top1; // of the epoch whose weights are the job's model
  if (typeof best === "number") shown.push(["Accuracy (top-1)", percent(best)]);
  if (typeof metrics.top1 === "number" && metrics.top1 !== best) shown.push(["After the last epoch", percent(metrics.top1)]);
  if (typeof metrics.top5 === "number") shown.push([metrics.top1 === best ? "Top-5" : "Top-5, last epoch", percent(metrics.top5)]);
  for (const [name, word] of [["epochs", "Epochs"], ["train_images", "Training images"], ["val_images", "Validation images"]]) {
    if (typeof metrics[name] === "number") shown.push([word, count(metrics[name])]);
  }
  const unreadable = metrics.unreadable_count ?? metrics.unreadable?.length; // jobs of earlier workers have names alone
  if (unreadable) shown.push(["Unreadable, left out", count(unreadable)]);
  return shown;
}
