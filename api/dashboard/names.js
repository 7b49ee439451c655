// What people called the data sets that requests name by id.

import { get } from "./http.js";

const names = new Map();

/** The name of a data set, as soon as it is known. */
export function named(id) {
  return names.get(id) ?? id;
}

/** Ask for the names that jobs mention, each once; true if anything new was learnt. */
export async function learn(jobs) {
  const ids = new Set(jobs.map(({ request }) => request?.dataset ?? request?.finetune?.dataset).filter((id) => /^ds_\w+$/.test(id ?? "") && !names.has(id)));
  for (const id of ids) names.set(id, id);
  await Promise.all([...ids].map(async (id) => {
    try {
      names.set(id, (await get(`datasets/${id}`)).name);
    } catch {
      // deleted since, perhaps: then its id has to do
    }
  }));
  return ids.size > 0;
}
