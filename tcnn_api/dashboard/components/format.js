// Numbers, times and names as people read them, in their own locale.

import { named } from "./names.js";
import { isolated } from "../dom.js";
import { NONE, bytes, count, some } from "../numbers.js";
import { forPages } from "../server/wording.js";

export { bytes, count, number, percent, some } from "../numbers.js";

const dates = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const times = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const ago = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });

/** 1.2 M, 26 M: for parameters. Locales write thousands, millions and metres alike, so the letters are the SI's. */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  const step = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([size]) => Number(value.toPrecision(3)) >= size);
  const digits = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });
  return step ? `${digits.format(value / step[0])}\u00a0${step[1]}` : digits.format(value);
}

export function date(iso) {
  return iso ? dates.format(new Date(iso)) : NONE;
}

/** The time of the day, with the date where it is another one than that of `beside`. */
export function moment(iso, beside) {
  const at = new Date(iso);
  return beside && at.toDateString() === new Date(beside).toDateString() ? times.format(at) : dates.format(at);
}

/** In the largest unit of which there is one after rounding; days are those of the calendar here: yesterday is the day before today. */
export function since(iso, now = Date.now()) {
  if (!iso) return NONE;
  const at = new Date(iso);
  const whole = (size) => Math.round((at - now) / (1000 * size));
  if (Math.abs(at - now) < 10_000) return "just now";
  for (const [unit, size, most] of [["second", 1, 60], ["minute", 60, 60], ["hour", 3600, 24]]) {
    if (Math.abs(whole(size)) < most) return ago.format(whole(size), unit);
  }
  return ago.format(day(at) - day(new Date(now)), "day");
}

/** Days of the calendar are counted on: also those of 23 or 25 hours are one. */
function day(at) {
  return Date.UTC(at.getFullYear(), at.getMonth(), at.getDate()) / 86_400_000;
}

/** 75 → 1 min 15 s. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(whole / 60); // rounded before it is divided: there is no minute 60
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const STATUS = {
  queued: { word: "Queued", icon: "○" },
  running: { word: "Running", icon: "◐" },
  succeeded: { word: "Succeeded", icon: "✓" },
  failed: { word: "Failed", icon: "✕" },
  cancelled: { word: "Cancelled", icon: "⊘" },
};

export const ENDED = new Set(["succeeded", "failed", "cancelled"]);

/** What a job is called, or else what it is about, in a few words. */
export function title(job) {
  const request = job.request ?? {};
  return String(job.name ?? request.model ?? named(request.job ?? request.checkpoint) ?? job.id);
}

/** What it does with it. */
export function deed(job) {
  const request = job.request ?? {};
  const data = request.dataset ?? request.finetune?.dataset;
  const words = { transform: request.finetune ? "Convert and fine-tune" : "Convert", finetune: "Fine-tune", evaluate: "Evaluate" };
  return `${words[job.kind] ?? job.kind}${data ? ` on ${isolated(named(data))}` : ""}`;
}

/** What an uploaded data set is. */
export function describeDataset(one) {
  return `${isolated(one.name)} · ${some(one.images, "image")}, ${some(one.classes.length, "class", "classes")}`;
}

/** What an uploaded checkpoint is. */
export function describeCheckpoint(one) {
  return `${isolated(one.name)} · ${one.base_model}, ${bytes(one.size)}`;
}

const FAULTS = {
  crashed: "crashed", timed_out: "exceeded its time limit", no_progress: "made no progress", out_of_memory: "ran out of memory",
  source_failed: "a job that it depends on failed", worker_lost: "its worker disappeared", quarantined: "brought down several workers", internal: "an error in the service",
};

/** What an error's code means, beside the code; codes of errors of the request say it themselves. */
export function fault(code) {
  return FAULTS[code] ? `${code}: ${FAULTS[code]}` : code;
}

/** Why a job has not begun: its next try, what it waits for, and its place in the queue. */
function queued(job) {
  const left = job.retry_at ? (new Date(job.retry_at) - Date.now()) / 1000 : 0;
  if (left > 0) return `Attempt ${job.attempt} of ${job.max_attempts} failed; retrying in ${duration(Math.ceil(left))}`;
  const before = job.queue_position;
  const place = before === null || before === undefined ? "Waiting" : before === 0 ? "Next in line" : `${count(before)} ahead of it`;
  const why = job.waiting_for?.replace(/job_[0-9a-z]+/g, (id) => isolated(named(id)));
  if (!why) return place;
  if (/^waits for .*job_/.test(job.waiting_for)) return `${why.replace(/^waits/, "Waiting")} to succeed`;
  return `${place}: ${why}`;
}

/** Why a job failed. */
export function failure(job) {
  return job.error ? forPages(job.error.message) : "";
}

/** Where it stands: "Training, epoch 2 of 10, 40 s left". */
export function standing(job) {
  if (job.status === "queued") return queued(job);
  if (job.status === "running") {
    if (job.cancel_requested) return "Stopping…";
    const now = job.progress;
    if (!now) return "Starting…";
    const parts = [now.phase.charAt(0).toUpperCase() + now.phase.slice(1)];
    if (now.epochs) parts.push(`epoch ${Math.min((now.epoch ?? 1), now.epochs)} of ${now.epochs}`);
    else if (now.steps) parts.push(`step ${now.step ?? 0} of ${now.steps}`);
    if (now.eta_seconds) parts.push(`${duration(now.eta_seconds)} left`);
    return parts.join(", ");
  }
  if (job.status === "failed") return failure(job);
  const seconds = (new Date(job.finished_at) - new Date(job.started_at)) / 1000;
  return job.started_at && job.finished_at ? `Took ${duration(seconds)}` : "";
}
