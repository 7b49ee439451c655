// What people call the data sets, jobs and checkpoints that requests name by id.

import { h } from "../dom.js";
import { get, key } from "../server/http.js";

const KINDS = {
  ds: [(id) => `datasets/${id}`, (found) => found.name],
  ckpt: [(id) => `checkpoints/${id}`, (found) => found.name],
  wts: [(id) => `weights/${id}`, (found) => found.name],
  job: [(id) => `jobs/${id}`, (found) => found.name ?? found.request.model ?? found.id],
};
const ID = /^(ds|ckpt|job|wts)_[0-9a-z]+$/;
const names = new Map();

const FOREIGN = { ds: "a data set", ckpt: "a checkpoint", wts: "weights" }; // to whom a link shows one job, and no more

/** The name of an id, as soon as it is known; until then, and of anything else, itself. */
export function named(id) {
  return names.get(id) ?? (key.isLent() && ID.test(id) ? FOREIGN[id.split("_")[0]] : null) ?? id;
}

/** A text with the names of all ids in it that are known. */
export function withNames(text) {
  return String(text).replace(/\b(ds|ckpt|job|wts)_[0-9a-z]+/g, named);
}

/** A setting in words: an id by the name of what it is of, or else as one. */
export function worded(value) {
  const name = withNames(value);
  if (name !== String(value)) return h("span", { title: value }, name);
  return ID.test(value) ? h("code", { class: "id", title: value }, value) : value;
}

/** Ask for the names that jobs mention, each once; true if anything new was asked. */
export async function learn(jobs) {
  if (key.isLent()) return false; // a link opens nothing but its job
  const mentioned = jobs.flatMap(({ request }) => texts(request));
  const ids = new Set(mentioned.filter((text) => ID.test(text) && !names.has(text)));
  for (const id of ids) names.set(id, id);
  await Promise.all([...ids].map(async (id) => {
    const [path, name] = KINDS[id.split("_")[0]];
    try {
      names.set(id, String(name(await get(path(id)))));
    } catch {
      // deleted since, perhaps: then its id has to do
    }
  }));
  return ids.size > 0;
}

/** All texts in a value, however deep. */
function texts(value) {
  if (typeof value === "string") return [value];
  return value !== null && typeof value === "object" ? Object.values(value).flatMap(texts) : [];
}
