// Before and after a job's fine-tuning: its models side by side, what one answers better than another, and where.

import { h, s } from "../dom.js";
import { bytes, count, percent, short, some } from "../components/format.js";
import { get } from "../server/http.js";
import { trouble } from "../components/parts.js";
import { breakable, scrolling } from "../components/scrolling.js";
import { explorer, gallery } from "./single-images.js";

const NAMES = { cnn: "CNN", tuned_cnn: "CNN, fine-tuned the same way", converted: "Converted", t_cnn: "T-CNN, fine-tuned" };
const WIDTH = 120;
const HEIGHT = 18;
const SURE = 0.95;

/** The card at the top of a fine-tuned job's page; classes and images are fetched when they are asked for. */
export function beforeAfter(found, job) {
  const images = looked(job);
  const measured = found.rows.filter((row) => row.accuracy);
  const scale = axis(measured);
  const headline = found.differences[0];
  const classes = h("div");
  const pictures = h("div");
  const more = (name, place, draw) => {
    const element = h("details", { ontoggle: () => element.open && !place.hasChildNodes() && fill(place, (whole) => draw(whole, images), `jobs/${job.id}`) }, h("summary", {}, name), place);
    return element;
  };
  return h("section", { class: "card before-after" },
    h("h2", {}, "Before and after"),
    headline && h("p", { class: `verdict ${tone(headline)}` }, verdict(headline)),
    scrolling("Models before and after", {},
      h("table", { class: "stuck" },
        h("thead", {}, h("tr", {}, ["Model", "Accuracy", `${percent(scale[0], 0)} to ${percent(scale[1], 0)}`, "Corrupted", "FLOPs", "Images/s", "Size"].map((word) => h("th", { scope: "col" }, word)))),
        h("tbody", {}, found.rows.map((row) => line(row, scale))))),
    h("p", { class: "muted" }, `On ${some(found.images, "validation image")}, with ${percent(SURE, 0)} intervals; images per second through the model alone${measured.some((row) => spread(row.cost.images_per_second)) ? ", slowest to fastest pass" : ""}.`,
      found.corrupted_images > 0 && ` Corrupted: ${count(found.corrupted_images)} of them, each with a randomly drawn corruption (of ImageNet-C’s fifteen) and severity (of five), the same for all models.`),
    found.differences.length > 0 && h("ul", { class: "differences" }, telling(found.differences).map((one) => h("li", {}, told(one)))),
    more("Class by class", classes, drawClasses),
    found.differences.length > 0 && more("The images on which they differ", pictures, drawPictures));
}

function line(row, scale) {
  const name = h("th", { scope: "row" }, NAMES[row.role] ?? row.role);
  if (!row.accuracy) return h("tr", {}, name, h("td", { colspan: "6", class: "reason" }, `Not measured: ${row.missing}`));
  const { top1 } = row.accuracy;
  const { cost } = row;
  if (row.new_classifier) name.append(h("span", { class: "tag" }, "untrained classifier"));
  return h("tr", {}, name,
    h("td", {}, percent(top1.mean), h("span", { class: "range" }, `${percent(top1.low)} to ${percent(top1.high)}`)),
    h("td", {}, bar(top1, scale, row.role)),
    share(row.corrupted),
    h("td", {}, short(cost.flops)),
    rate(cost.images_per_second),
    h("td", {}, bytes(cost.bytes)));
}

/** Images a second; of one pass there is no interval. */
function rate({ median, low, high }) {
  return h("td", {}, short(median), spread({ low, high }) && h("span", { class: "range" }, spread({ low, high })));
}

function spread({ low, high }) {
  return short(low) === short(high) ? "" : `${short(low)} to ${short(high)}`;
}

function share(accuracy) {
  if (!accuracy) return h("td", {}, "–");
  const { mean, low, high } = accuracy.top1;
  return h("td", {}, percent(mean), h("span", { class: "range" }, `${percent(low, 0)} to ${percent(high, 0)}`));
}

/** A dot with its interval; the numbers beside it say the same. */
function bar({ mean, low, high }, [from, to], role) {
  const at = (value) => 4 + (WIDTH - 8) * (value - from) / (to - from);
  return s("svg", { class: `interval ${role}`, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true" },
    s("line", { class: "rail", x1: 4, x2: WIDTH - 4, y1: HEIGHT / 2, y2: HEIGHT / 2 }),
    s("line", { class: "reach", x1: at(low), x2: at(high), y1: HEIGHT / 2, y2: HEIGHT / 2 }),
    s("circle", { cx: at(mean), cy: HEIGHT / 2, r: 4.5 }));
}

/** From a whole ten per cent below all intervals to one above them. */
function axis(rows) {
  const ends = rows.flatMap((row) => [row.accuracy.top1.low, row.accuracy.top1.high]);
  const low = Math.floor(Math.min(...ends, 1) * 10) / 10;
  const high = Math.ceil(Math.max(...ends, 0) * 10) / 10;
  return high > low ? [low, high] : [Math.max(0, low - 0.1), Math.min(1, low + 0.1)];
}

function tone(one) {
  return one.top1.low > 0 ? "good" : one.top1.high < 0 ? "bad" : "";
}

function verdict(one) {
  const other = one.over === "tuned_cnn" ? "the CNN fine-tuned in the same way" : one.over === "cnn" ? "the original CNN" : "the model before training";
  const model = one.of === "t_cnn" ? "The T-CNN" : "The model";
  if (one.top1.low > 0) return `${model} is better than ${other}, by ${points(one)}.`;
  if (one.top1.high < 0) return `${model} is worse than ${other}, by ${points(one)}.`;
  return `${model} and ${other} cannot be told apart on these images: ${points(one)}.`;
}

const signed = new Intl.NumberFormat(undefined, { signDisplay: "exceptZero", minimumFractionDigits: 1, maximumFractionDigits: 1 });

function points(one) {
  return `${estimate(one.top1)} percentage points`;
}

function estimate({ mean, low, high }) {
  return `${signed.format(100 * mean)} (${signed.format(100 * low)} to ${signed.format(100 * high)})`;
}

function told(one) {
  return `${NAMES[one.of]}, vs. ${NAMES[one.over]}: ${points(one)}; ${some(one.newly_right, "image")} newly right, ${count(one.newly_wrong)} newly wrong, ${count(one.otherwise_wrong)} wrong in a different way${one.corrupted ? `; on corrupted images ${estimate(one.corrupted)}` : ""}.`;
}

async function fill(place, draw, url) {
  place.replaceChildren(h("p", { class: "loading" }, "Loading…"));
  try {
    const whole = await get(`${url}/files/before-after.json`);
    place.replaceChildren(...draw(whole));
  } catch (error) {
    place.replaceChildren(trouble(error, () => fill(place, draw, url)));
  }
}

/** Those that tell something: a conversion that is as good as the CNN stands for it, so one of the two will do. */
function telling(differences) {
  const kept = differences.find((one) => one.of === "converted" && one.over === "cnn");
  return kept && kept.top1.low <= 0 && kept.top1.high >= 0 ? differences.filter((one) => one.of !== "converted" && one.over !== "converted") : differences;
}

function drawClasses(whole) {
  const rows = whole.rows.filter((row) => row.accuracy && !row.new_classifier);
  const gains = whole.differences[0];
  const names = Object.keys(rows.at(-1)?.per_class ?? {});
  const cell = (score) => h("td", {}, score ? percent(score.top1.mean) : "–", score && h("span", { class: "range" }, `${percent(score.top1.low, 0)} to ${percent(score.top1.high, 0)}`));
  return [scrolling("Accuracy by class", { rows: names.length },
    h("table", { class: "stuck" },
      h("thead", {}, h("tr", {}, ["Class", "Images", ...rows.map((row) => NAMES[row.role]), gains && "Difference, points"].filter(Boolean).map((word) => h("th", { scope: "col" }, word)))),
      h("tbody", {}, names.map((name) => h("tr", {},
        h("th", { scope: "row" }, breakable(name)),
        h("td", {}, count(rows.at(-1).per_class[name].images)),
        rows.map((row) => cell(row.per_class[name])),
        gains && h("td", {}, gains.per_class[name] ? estimate(gains.per_class[name]) : "–"))))))];
}

/** The data set in which the explorer finds the images that were measured. */
function looked({ id, request }) {
  const asked = request.finetune ?? request;
  return explorer(id, asked.val ?? asked.dataset);
}

function drawPictures(whole, images) {
  const [one] = whole.differences;
  const models = { over: "Before", of: "After" };
  return [
    h("p", { class: "muted" }, `${NAMES[one.of]}, vs. ${NAMES[one.over]}; the most confident answers first.`),
    ...gallery("Newly right", one.right_images, one.newly_right, images, models),
    ...gallery("Newly wrong", one.wrong_images, one.newly_wrong, images, models),
  ];
}
