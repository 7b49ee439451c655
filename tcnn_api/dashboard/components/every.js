// Lists of the server's as a whole, page after page, for whoever chooses among what they have.

import { isolated } from "../dom.js";
import { renamed } from "./names.js";
import { count, date, title } from "./format.js";
import { get } from "../server/http.js";
import { rightsNow } from "../server/rights.js";

const PAGE = 100; // what the server gives at a time
const MOST = 1000; // what people look through; then pages of older ones lead to the forms

/** All that a list has of the key's own tenant, whose alone a request may name, the newest first, up to `MOST`: `{data, more}`. */
export async function every(path, { query: asked = {}, signal } = {}) {
  const data = [];
  const { several, tenant } = await rightsNow().catch((error) => {
    if (error.passes) throw error;
    return {}; // a key that is refused is asked for by whom the list refuses
  });
  const query = { ...asked, ...(several && { tenant }) };
  let after = "";
  for (;;) {
    const page = await get(`${path}?${new URLSearchParams({ ...query, limit: PAGE, ...(after && { after }) })}`, { signal });
    data.push(...page.data);
    after = page.next;
    if (!after || data.length >= MOST) return { data, more: page.has_more };
  }
}

/** Options of a select of all that a list has, `option(one)` of each; where there are more, a last one says so. */
export async function optionsOf(path, option, asked) {
  const { data, more } = await every(path, asked);
  return [...data.map(option), ...beyond(more)];
}

/** Options of jobs by what people call them: those that have made a model, or with `expected` those that will. */
export async function jobOptions({ expected = false, signal } = {}) {
  const { data, more } = await every("jobs", { query: { model: expected ? "expected" : "made", results: false }, signal });
  for (const job of data.toReversed()) await renamed(job); // one that is called as the job it began with comes after that one
  const told = expected ? (job) => `${job.status}: starts when it is done` : (job) => date(job.finished_at);
  return [...data.map((job) => [job.id, `${isolated(title(job))} · ${job.kind}, ${told(job)}`]), ...beyond(more)];
}

/** One that cannot be chosen. */
function beyond(more) {
  return more ? [["", `Only the newest ${count(MOST)} are listed; older ones: from their own pages`, true]] : [];
}
