// What people call the data sets, jobs and checkpoints that requests name by id.

import { h, isolated } from "../dom.js";
import { get, key } from "../server/http.js";

const KINDS = {
  ds: [(id) => `datasets/${id}`, (found) => found.name],
  ckpt: [(id) => `checkpoints/${id}`, (found) => found.name],
  wts: [(id) => `weights/${id}`, (found) => found.name],
  job: [(id) => `jobs/${id}`, called],
};
const ID = /^(ds|ckpt|job|wts)_[0-9a-z]+$/;
const names = new Map();
const asked = new Map(); // names that are on their way, by their id
const NONE = new Set([403, 404, 422]); // answers that stay: there is none, or none for this key

const FOREIGN = { ds: "a data set", ckpt: "a checkpoint", wts: "weights" }; // to whom a link shows one job, and no more

/** The name of an id, as soon as it is known; until then, and of anything else, itself. */
export function named(id) {
  return names.get(id) ?? (key.isLent() && ID.test(id) ? FOREIGN[id.split("_")[0]] : null) ?? id;
}

/** A text with the names of all ids in it that are known. */
export function withNames(text) {
  return String(text).replace(/\b(ds|ckpt|job|wts)_[0-9a-z]+/g, (id) => isolated(named(id)));
}

/** A setting in words: an id by the name of what it is of, or else as one. */
export function worded(value) {
  const name = withNames(value);
  if (name !== String(value)) return h("span", { title: value }, name);
  return ID.test(value) ? h("code", { class: "id", title: value }, value) : value;
}

/** A job's name is what it is called, or else what it is about: a model, or what a job before it is called. */
async function called({ id, name, request }) {
  const source = request.job ?? request.checkpoint;
  return name ?? request.model ?? (ID.test(source) ? nameOf(source) : id);
}

/** A job that was called something here is called so wherever it is mentioned. */
export async function renamed(job) {
  names.set(job.id, await called(job));
}

/** A name as it is or will be known; the id of what has none, and of what could not be asked, which is asked again. */
async function nameOf(id) {
  if (names.has(id)) return names.get(id);
  if (!asked.has(id)) asked.set(id, find(id).finally(() => asked.delete(id)));
  return asked.get(id);
}

async function find(id) {
  const [path, name] = KINDS[id.split("_")[0]];
  try {
    names.set(id, String(await name(await get(path(id)))));
  } catch (error) {
    if (NONE.has(error.status)) names.set(id, id);
  }
  return names.get(id) ?? id;
}

/** Another key may not see what had these names, or may see what seemed to have none. */
export function forgetNames() {
  names.clear();
  asked.clear();
}

/** Ask for the names that jobs mention, and heed what they are called now; true if any is another than before. */
export async function learn(jobs) {
  if (key.isLent()) return false; // a link opens nothing but its job
  const ids = [...new Set(jobs.flatMap(({ request }) => texts(request)).filter((text) => ID.test(text) && !names.has(text)))];
  const known = jobs.filter(({ id }) => names.has(id)).map((job) => [job, names.get(job.id)]);
  await Promise.all([...ids.map(nameOf), ...known.map(([job]) => renamed(job))]);
  return ids.some((id) => names.has(id)) || known.some(([{ id }, before]) => names.get(id) !== before);
}

/** Whether a request names something by its id, which is one tenant's. */
export function mentions(request) {
  return texts(request).some((text) => ID.test(text));
}

/** Whether a request has this id, wherever in it. */
export function uses(request, id) {
  return texts(request).includes(id);
}

/** All texts in a value, however deep. */
function texts(value) {
  if (typeof value === "string") return [value];
  return value !== null && typeof value === "object" ? Object.values(value).flatMap(texts) : [];
}
