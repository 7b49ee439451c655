// What an evaluation has measured: models side by side, by size, by corruption and severity, and class by class.

import { chart } from "../chart.js";
import { h, isolated } from "../dom.js";
import { count, number, percent, some } from "../components/format.js";
import { get } from "../server/http.js";
import { named } from "../components/names.js";
import { trouble } from "../components/parts.js";
import { breakable, path, scrolling } from "../components/scrolling.js";
import { explorer, gallery } from "./single-images.js";

const FIRST = 200; // classes that a table shows
const SQUARE = 20; // classes of which a whole matrix can be read
const PAIRS = 50; // and else so many pairs

/** The cards of an evaluation's page, by what its result has. */
export function evaluation({ data, split, images, held_out: heldOut, trained_on: seen = [], part_lost: lost = [], rows = [], differences = [], changes = [] }, job) {
  const whose = heldOut ? "those held out from training" : split === null ? "all of them, since it has no splits" : `split ${split}`;
  return [
    h("section", { class: "card" },
      h("h2", {}, "Accuracy"),
      h("p", {}, `${some(images, "image")} of ${told(data)}: ${whose}.`),
      unread(rows, images, data),
      seen.length > 0 && h("p", { class: "notice bad" }, `${seen.map(told).join(", ")}: trained on these images, so this is not the accuracy on new ones.`),
      lost.length > 0 && h("p", { class: "notice bad" }, `${lost.map(told).join(", ")}: a part of these images was held out from training, and which part cannot be told any more, because a file name, a class or the order of the images has changed. Measure on the data set as it was, or on other images.`),
      table("Accuracy by model", ["Model", "Pixels", "Top-1", "Top-5", "Loss", "Corrupted, top-1", "mCE"],
        rows.map((row) => h("tr", {},
          h("th", { scope: "row", class: "long" }, named(row.model), seen.includes(row.model) && h("span", { class: "tag" }, "trained on these")),
          h("td", {}, pixels(row)), h("td", {}, percent(row.clean?.top1), row.clean && range(row.clean)),
          [percent(row.clean?.top5), number(row.clean?.loss), percent(row.corruption_top1), percent(row.mce)].map((text) => h("td", {}, text))))),
      rows.some((row) => row.clean?.top1_interval) && h("p", { class: "hint" }, "The range below each accuracy is its 95% interval."),
      differences.length > 0 && apart(differences)),
    resolution(rows),
    ...rows.filter((row) => Object.keys(row.corruptions ?? {}).length).map((row) => heat(row, rows.length > 1)),
    classes(rows),
    ...rows.filter((row) => row.clean?.confusions?.length).map((row) => confusions(row, rows)),
    job.request.config?.examples ? single(job, data, rows, changes) : null,
  ];
}

/** Which of the images were not measured: those of the model that could read fewest. */
function unread(rows, images, data) {
  const missed = (row) => row.unreadable_count ?? 0; // which results of old versions do not have
  const worst = rows.reduce((one, other) => (missed(other) > missed(one) ? other : one), {});
  if (!missed(worst)) return null;
  const all = worst.unreadable_count;
  const names = worst.unreadable.map((name) => (name.startsWith(`${data}/`) ? name.slice(data.length + 1) : name));
  return [
    h("p", { class: "bad" }, `Measured on ${count(images - all)} of the ${some(images, "image")}: ${count(all)} cannot be read and ${all === 1 ? "is" : "are"} left out.`),
    h("details", {}, h("summary", {}, "Show them"), h("ul", { class: "unreadable" }, names.map((name) => h("li", {}, h("code", {}, path(name))))),
      all > names.length && h("p", { class: "muted" }, `and ${count(all - names.length)} more.`)),
  ];
}

function table(label, heads, lines, extra = "") {
  return scrolling(label, { class: extra, rows: lines.length },
    h("table", { class: "stuck" }, h("thead", {}, h("tr", {}, heads.map((word) => h("th", { scope: "col" }, breakable(word))))), h("tbody", {}, lines)));
}

/** Between what an accuracy lies; results of tcnn 0.2.0 and before do not say. */
function range({ top1_interval: between }) {
  return between ? h("span", { class: "range" }, `${percent(between[0], 0)} to ${percent(between[1], 0)}`) : null;
}

/** Every other model over the first, on the same images. */
function apart(differences) {
  const kinds = [["top1", "Top-1"], ["corrupted", "Corrupted, top-1"]].filter(([kind]) => differences.some((one) => one[kind]));
  const points = (value) => signed.format(100 * value);
  return [
    h("h3", {}, `Difference from ${told(differences[0].over)}`),
    h("p", { class: "muted" }, "In percentage points, compared image by image, with 95% intervals: if an interval contains 0, the models cannot be told apart."),
    table(`Accuracy relative to ${told(differences[0].over)}`, ["Model", "Pixels", ...kinds.map(([, word]) => word)],
      differences.map((one) => h("tr", {},
        h("th", { scope: "row", class: "long" }, named(one.of)), h("td", {}, pixels(one)),
        kinds.map(([kind]) => h("td", {}, one[kind] ? [points(one[kind].mean), h("span", { class: "range" }, `${points(one[kind].low)} to ${points(one[kind].high)}`)] : "–"))))),
  ];
}

/** What a model or a data set is called, in a sentence. */
function told(id) {
  return isolated(named(id));
}

function pixels(row) {
  return row.height === row.width ? String(row.height) : `${row.height}×${row.width}`;
}

/** A model; beside others of it, at its size. */
function called(row, rows) {
  const sizes = rows.filter((one) => one.model === row.model).length > 1;
  return sizes ? `${told(row.model)}, ${pixels(row)} pixels` : told(row.model);
}

/** Accuracy over the size of images, where a model was measured at several. */
function resolution(rows) {
  const models = [...new Set(rows.map((row) => row.model))];
  const series = models.map((model) => ({
    name: named(model),
    points: rows.filter((row) => row.model === model && row.clean).map((row) => [Math.round(Math.sqrt(row.height * row.width)), row.clean.top1]).sort((a, b) => a[0] - b[0]),
  })).filter(({ points }) => points.length > 1);
  if (!series.length) return null;
  const drawn = chart({ title: "Accuracy by resolution", unit: "top-1", format: percent, share: true, axis: "pixels per side", at: "side" });
  drawn.draw(series);
  return h("section", { class: "card" }, h("h2", {}, "Resolution"), drawn.element);
}

/** A map of accuracies: a corruption a line, a severity a column; the numbers stand in it. */
function heat(row, several) {
  const found = Object.entries(row.corruptions);
  const severities = [...new Set(found.flatMap(([, one]) => Object.keys(one.severities)))].sort();
  const cell = (top1) => {
    const element = h("td", { class: "warmth" }, percent(top1, 0));
    if (top1 !== undefined) element.style.setProperty("--warmth", top1);
    return element;
  };
  return h("section", { class: "card" },
    h("h2", {}, several ? `Corruptions: ${told(row.model)}, ${pixels(row)} pixels` : "Corruptions"),
    h("p", { class: "muted" }, `Top-1 accuracy; a stronger colour means higher.${row.clean ? ` On clean images: ${percent(row.clean.top1)}.` : ""}`),
    table(`Accuracy of ${told(row.model)} at ${pixels(row)} pixels by corruption and severity`, ["Corruption", ...severities.map((one) => `Severity ${one}`), "Mean"],
      found.map(([name, one]) => h("tr", {},
        h("th", { scope: "row" }, name.replaceAll("_", " ")), severities.map((severity) => cell(one.severities[severity]?.top1)), cell(one.top1))), "heat"));
}

/** Class by class, the one that the first model knows least at the top. */
function classes(rows) {
  const measured = rows.filter((row) => Object.keys(row.clean?.per_class ?? {}).length);
  if (!measured.length) return null;
  const [first] = measured;
  const all = Object.entries(first.clean.per_class).sort(([, a], [, b]) => (a.top1 ?? 2) - (b.top1 ?? 2));
  return h("section", { class: "card" },
    h("h2", {}, "Class by class"),
    h("p", { class: "muted" }, `Top-1; the classes with the lowest accuracy of ${called(first, rows)} come first.${all.length > FIRST ? ` Showing ${count(FIRST)} of ${count(all.length)}; evaluation.json has all.` : ""}`),
    table("Accuracy by class", ["Class", "Images", ...measured.map((row) => called(row, rows))],
      all.slice(0, FIRST).map(([name, score]) => h("tr", {},
        h("th", { scope: "row", class: "long" }, breakable(name)), h("td", {}, count(score.images)),
        measured.map(({ clean: { per_class: { [name]: own } } }) => h("td", {}, percent(own?.top1), own && range(own)))))));
}

/** The confusion matrix: a class a line, an answer a column, in shares of the class; of many classes the worst pairs. */
function confusions(row, rows) {
  const { per_class: scores, confusions: pairs } = row.clean;
  const names = Object.keys(scores);
  const title = rows.length > 1 ? `Confusions: ${called(row, rows)}` : "Confusions";
  if (names.length > SQUARE) {
    const shown = pairs.slice(0, PAIRS);
    return h("section", { class: "card" }, h("h2", {}, title),
      h("p", { class: "muted" }, `The ${count(shown.length)} most frequent confusions.`),
      table(title, ["Class", "Predicted as", "Images", "Share of the class"], shown.map((one) => h("tr", {},
        h("th", { scope: "row", class: "long" }, breakable(one.target)), h("td", { class: "long" }, breakable(one.answer)), h("td", {}, count(one.images)),
        h("td", {}, percent(one.images / scores[one.target].images))))));
  }
  const wrong = new Map(pairs.map((one) => [JSON.stringify([one.target, one.answer]), one.images]));
  const cell = (target, answer) => {
    const images = target === answer ? scores[target].right : wrong.get(JSON.stringify([target, answer])) ?? 0;
    const element = h("td", { class: `warmth${target === answer ? " right" : ""}` }, count(images));
    element.style.setProperty("--warmth", images / Math.max(1, scores[target].images));
    return element;
  };
  return h("section", { class: "card" }, h("h2", {}, title),
    h("p", { class: "muted" }, "Numbers of images: one row per class, one column per prediction; a stronger colour means a larger share of the class."),
    table(title, ["Class", ...names], names.map((target) => h("tr", {}, h("th", { scope: "row", class: "long" }, breakable(target)), names.map((answer) => cell(target, answer)))), "heat"));
}

const signed = new Intl.NumberFormat(undefined, { signDisplay: "exceptZero", minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** Image by image: how each model departs from the first, and what each gets wrong; fetched when it is asked for. */
function single(job, data, rows, changes) {
  const place = h("div");
  const line = ({ of, over, height, width, top1: { mean, low, high }, newly_right: right, newly_wrong: wrong }) =>
    `${called({ model: of, height, width }, rows)}, vs. ${told(over)}: ${signed.format(100 * mean)} (${signed.format(100 * low)} to ${signed.format(100 * high)}) percentage points; ${some(right, "image")} newly right, ${count(wrong)} newly wrong.`;
  const open = async () => {
    if (!details.open || place.hasChildNodes()) return;
    place.append(h("p", { class: "loading" }, "Loading…"));
    try {
      const whole = await get(`jobs/${job.id}/files/evaluation.json`);
      // Where a model has no explorer, for it is no job's, that of another one shows the image.
      const other = whole.rows.map((one) => explorer(one.model, data)).find(Boolean);
      place.replaceChildren(...whole.changes.flatMap((one) => {
        const looked = explorer(one.of, data) ?? explorer(one.over, data) ?? other;
        const models = { over: called({ ...one, model: one.over }, whole.rows), of: called({ ...one, model: one.of }, whole.rows) };
        return [...gallery(`${models.of}: newly right`, one.right_images, one.newly_right, looked, models),
          ...gallery(`${models.of}: newly wrong`, one.wrong_images, one.newly_wrong, looked, models)];
      }), ...whole.rows.filter((one) => one.clean).flatMap((one) =>
        gallery(`${called(one, whole.rows)}: wrong`, one.mistakes, one.clean.images - one.clean.right, explorer(one.model, data) ?? other)));
    } catch (error) {
      place.replaceChildren(trouble(error, () => (place.replaceChildren(), open())));
    }
  };
  const details = h("details", { ontoggle: open }, h("summary", {}, changes.length ? "The images on which they differ, and those that each gets wrong" : "The images that it gets wrong"), place);
  return h("section", { class: "card" },
    h("h2", {}, "Image by image"),
    changes.length > 0 && h("ul", { class: "differences" }, changes.map((one) => h("li", {}, line(one)))),
    details);
}
