// Columns of runs: what every job has, its settings by short names, and the numbers of its result.

import { STATUS, count, date, deed, duration, number, percent, since } from "./format.js";
import { named } from "./names.js";

/** What the server sorts by beside settings and metrics. */
const PLAIN = {
  created: { word: "Created", text: (job) => since(job.created_at), tip: (job) => date(job.created_at) },
  started: { word: "Started", text: (job) => since(job.started_at), tip: (job) => date(job.started_at) },
  finished: { word: "Finished", text: (job) => since(job.finished_at), tip: (job) => date(job.finished_at) },
  duration: { word: "Duration", text: (job) => duration(seconds(job)) },
  what: { word: "Task", text: deed, unsorted: true },
  tenant: { word: "Tenant", text: (job) => job.tenant, unsorted: true },
  status: { word: "Status", text: (job) => STATUS[job.status].word, unsorted: true },
};

const WHOLE = /^[+-]?\d+$/; // a seed or a size is told by all of its digits

export const FIRST = ["metrics.accuracy", "settings.epochs", "settings.lr", "duration", "created"];

/** Nested settings as dotted names; those that were left at nothing are left out. */
export function flat(value, prefix = "") {
  return Object.entries(value ?? {}).flatMap(([name, item]) => {
    if (item === null || item === undefined) return [];
    if (typeof item === "object" && !Array.isArray(item)) return flat(item, name === "config" || name === "finetune" ? prefix : `${prefix}${name}.`);
    if (Array.isArray(item)) return item.length ? [[`${prefix}${name}`, item.map(words).join(", ")]] : [];
    return [[`${prefix}${name}`, words(item)]];
  });
}

function words(item) {
  if (item === null || typeof item !== "object") return String(item);
  const values = Object.values(item);
  return values.some((value) => typeof value === "object") ? JSON.stringify(item) : values.join(" with ");
}

/** Whether a name out of an address is that of a column. */
export function isColumn(name) {
  return Object.hasOwn(PLAIN, name) || /^(settings|metrics)(\.[\w-]{1,64}){1,4}$/.test(name);
}

/** All columns that any of these jobs has something for. */
export function columnsOf(jobs) {
  const own = jobs.flatMap((job) => [
    ...flat(job.request).map(([name]) => `settings.${name}`),
    ...Object.keys(job.metrics).map((name) => `metrics.${name}`)]);
  return [...Object.keys(PLAIN), ...[...new Set(own)].filter(isColumn).sort()];
}

export function heading(column) {
  return PLAIN[column]?.word ?? column.replace(/^(settings|metrics)\./, "");
}

/** Text settings cannot be sorted by: the server compares numbers. */
export function sortable(column, jobs) {
  if (PLAIN[column]) return !PLAIN[column].unsorted;
  return jobs.some((job) => isNumber(raw(column, job))) || !jobs.some((job) => raw(column, job) !== undefined);
}

/** What a job has in a column, as people read it, and what is told of it on the way over it. */
export function cell(column, job) {
  const plain = PLAIN[column];
  if (plain) return { text: plain.text(job), tip: plain.tip?.(job) };
  const value = raw(column, job);
  if (value === undefined) return { text: "–" };
  if (column.startsWith("metrics.")) return { text: measured(column, value), tip: String(isEpoch(column) ? value + 1 : value) };
  return { text: isNumber(value) && !WHOLE.test(value) ? number(Number(value), 4) : named(value), tip: value };
}

/** Epochs are counted from 1 on all pages; results have them from 0, by which the server sorts them as well. */
export function measured(name, value) {
  if (isEpoch(name)) return count(value + 1);
  if (/(^|[._])(accuracy|top[15])$/.test(name)) return percent(value, 2);
  return Number.isInteger(value) ? count(value) : number(value, 4);
}

function raw(column, job) {
  const [kind, ...rest] = column.split(".");
  const name = rest.join(".");
  if (kind === "metrics") return Object.hasOwn(job.metrics, name) ? job.metrics[name] : undefined;
  return flat(job.request).find(([own]) => own === name)?.[1];
}

function isEpoch(name) {
  return /(^|[._])best_epoch$/.test(name);
}

function isNumber(value) {
  return value !== undefined && value !== "" && Number.isFinite(Number(value));
}

function seconds(job) {
  return job.started_at && job.finished_at ? (new Date(job.finished_at) - new Date(job.started_at)) / 1000 : null;
}
