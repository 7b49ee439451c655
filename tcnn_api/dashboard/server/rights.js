// What the key of the window is for: whose it is, whether it sees what all tenants have, and whether it may change anything.

import { key, refusal, whenBack, whose } from "./http.js";

const OPEN = { tenant: null, several: false, changes: true }; // a server without keys, or one that has yet to ask for one
const LENT = { tenant: null, several: false, changes: false }; // a link shows one job
let known = null; // the key that was asked about, and the answer, or that it is on its way

/**
 * `{tenant, several, changes}` of the key as it is: whether it sees several tenants, and whether it may submit. Rejects for a key
 * that the server refuses, and with `Away` and the like where it cannot be asked.
 */
export function rightsNow() {
  if (key.isLent()) return Promise.resolve(LENT);
  const own = key.own();
  if (!own) return Promise.resolve(OPEN);
  if (key.isWrong()) return Promise.reject(refusal(401, {}, own));
  if (known?.own !== own) {
    const now = { own, answer: whose(own).then(({ tenant, scopes }) => ({ tenant, several: scopes.includes("admin"), changes: scopes.includes("submit") })) };
    known = now;
    now.answer.catch(() => known === now && (known = null)); // it is asked again
  }
  return known.answer;
}

/** The same, awaited where the server is away. */
export function rights() {
  return rightsNow().catch((error) => {
    if (!error.passes) throw error;
    return new Promise((resolve, reject) => whenBack(() => rights().then(resolve, reject)));
  });
}

/** What may be done with something of a tenant's, and why no more: `{changes, cancels, why}`; `noun` is what it is. */
export function rightsTo(noun, owner, { tenant, several, changes }) {
  const job = noun === "job";
  const anothers = several && owner !== tenant;
  const why = anothers ? `This ${noun} is ${owner}’s. Your key may look at it${job ? " and cancel it" : ""}; to change it, use a key of ${owner}.`
    : changes ? "" : `Your key may look at ${job ? "jobs" : "uploads"}${job && several ? ", cancel them," : ""} and change nothing${job && several ? " else" : ""}.`;
  return { changes: changes && !anothers, cancels: changes || several, why };
}
