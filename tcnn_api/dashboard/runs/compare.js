// Several runs over one another: their curves, the settings in which they differ, and the numbers of their results.

import { chart } from "../chart.js";
import { flat, measured } from "../components/columns.js";
import { measurements } from "../components/csv.js";
import { apart, points } from "../curves.js";
import { h, isolated } from "../dom.js";
import { deed, number, percent, title } from "../components/format.js";
import { get } from "../server/http.js";
import { learn, withNames } from "../components/names.js";
import { badge, card, trouble } from "../components/parts.js";
import { MOST } from "./runs.js";
import { breakable, scrolling } from "../components/scrolling.js";

const CURVES = [
  { title: "Training loss", column: "train_loss", kind: "epoch", format: number },
  { title: "Validation loss", column: "val.loss", kind: "epoch", format: number },
  { title: "Validation top-1", column: "val.top1", kind: "epoch", format: percent, share: true },
  { title: "Temperature τ", column: "temperature", kind: "epoch", format: number },
  { title: "Temperature τ of the gates", column: "gate_temperature", kind: "epoch", format: number, where: apart },
  { title: "Learning rate", column: "lr", kind: "epoch", format: number },
];

export function show(main, query) {
  document.title = "Compare runs · tcnn";
  const asked = [...new Set((query.get("jobs") ?? "").split(",").filter((id) => /^job_[0-9a-z]+$/.test(id)))];
  const ids = asked.slice(0, MOST);
  const leaving = new AbortController();
  const place = h("div", {}, h("p", { class: "loading" }, "Loading runs…"));
  main.append(h("div", { class: "head" }, h("div", {}, h("p", { class: "crumb" }, h("a", { href: "#/runs" }, "Runs"), " / compare"), h("h1", {}, "Compare runs"))), place);
  if (!ids.length) {
    place.replaceChildren(h("p", { class: "empty" }, "Select runs ", h("a", { href: "#/runs" }, "in the table"), " first."));
    return;
  }
  const load = () => draw().catch((error) => error.name !== "AbortError" && place.replaceChildren(trouble(error, load)));
  load();

  async function draw() {
    const found = await Promise.all(ids.map((id) => get(`jobs/${id}`, { signal: leaving.signal }).catch((error) => {
      if (error.status !== 404) throw error;
      return null; // deleted since
    })));
    const jobs = found.filter(Boolean);
    const gone = ids.filter((_, at) => !found[at]);
    const notices = [
      gone.length > 0 && `No longer available: ${gone.join(", ")}.`,
      asked.length > MOST && `At most ${MOST} runs can be compared: these are the first ${MOST} of ${asked.length}.`,
    ].filter(Boolean).map((text) => h("p", { class: "notice" }, text));
    if (!jobs.length) return place.replaceChildren(...notices, h("p", {}, h("a", { href: "#/runs" }, "All runs")));
    const files = await Promise.all(jobs.map((job) => measurements(job, { signal: leaving.signal })));
    await learn(jobs);
    const names = distinct(jobs);
    const charts = CURVES.map(({ title: word, column, kind, format, share, where }) => {
      if (where && !files.some((file) => file && where(file.rows))) return null;
      const series = files.map((file, at) => ({ name: names[at], points: file ? points(file.rows.filter((row) => row.kind === kind), column) : [] }));
      if (!series.some((one) => one.points.length)) return null;
      const made = chart({ title: word, format, share });
      made.draw(series);
      return made.element;
    }).filter(Boolean);
    const settings = new Map();
    jobs.forEach((job, at) => {
      for (const [name, value] of [["task", deed(job)], ...flat(job.request)]) settings.set(name, (settings.get(name) ?? jobs.map(() => undefined)).with(at, value));
    });
    const differ = [...settings].filter(([, values]) => new Set(values).size > 1);
    const metrics = [...new Set(jobs.flatMap((job) => Object.keys(job.metrics)))];
    const heads = jobs.map((job, at) => h("th", { scope: "col" }, h("a", { href: `#/jobs/${job.id}`, title: names[at] }, names[at]), badge(job.status)));
    place.replaceChildren(...notices,
      card("Settings that differ", differ.length
        ? grid("Settings that differ", heads, differ.map(([name, values]) => [name, values.map((value) => (value === undefined ? "–" : withNames(value)))]))
        : h("p", {}, "All settings are the same."),
      h("p", { class: "hint" }, "Settings that are the same are left out; – means not set.")),
      charts.length ? card("Curves", h("div", { class: "charts" }, charts)) : "",
      metrics.length ? card("Results", grid("Results", heads.map((one) => one.cloneNode(true)),
        metrics.map((name) => [name, jobs.map((job) => (Object.hasOwn(job.metrics, name) ? measured(name, job.metrics[name]) : "–"))]))) : "");
  }

  return () => leaving.abort();
}

function grid(word, heads, rows) {
  return scrolling(word, {}, h("table", { class: "compared stuck" },
    h("thead", {}, h("tr", {}, h("td", {}), heads)),
    h("tbody", {}, rows.map(([name, values]) => h("tr", {}, h("th", { scope: "row" }, breakable(name)), values.map((value) => h("td", { title: value }, h("span", { class: "value" }, breakable(value)))))))));
}

/** Names by which the runs are told apart: where two are called the same, with the ends of their ids. */
function distinct(jobs) {
  const plain = jobs.map(title);
  return plain.map((name, at) => (plain.indexOf(name) === plain.lastIndexOf(name) ? name : `${isolated(name)} (${jobs[at].id.slice(-6)})`));
}
