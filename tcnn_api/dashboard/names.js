// What people call the data sets, jobs and checkpoints that requests name by id.

import { get } from "./http.js";

const KINDS = {
  ds: [(id) => `datasets/${id}`, (found) => found.name],
  ckpt: [(id) => `checkpoints/${id}`, (found) => found.name],
  wts: [(id) => `weights/${id}`, (found) => found.name],
  job: [(id) => `jobs/${id}`, (found) => found.name ?? found.request.model ?? found.id],
};
const names = new Map();

/** The name of an id, as soon as it is known; until then, and of anything else, itself. */
export function named(id) {
  return names.get(id) ?? id;
}

/** A text with the names of all ids in it that are known. */
export function withNames(text) {
  return String(text).replace(/\b(ds|ckpt|job|wts)_[0-9a-z]+/g, named);
}

/** Ask for the names that jobs mention, each once; true if anything new was asked. */
export async function learn(jobs) {
  const mentioned = jobs.flatMap(({ request }) => [request?.dataset, request?.finetune?.dataset, request?.job, request?.checkpoint, request?.weights, ...(request?.depends_on ?? []), ...(request?.against ?? []).flatMap((one) => [one.job, one.checkpoint, one.weights])]);
  const ids = new Set(mentioned.filter((id) => /^(ds|ckpt|job|wts)_[0-9a-z]+$/.test(id ?? "") && !names.has(id)));
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
