// A card: the jobs that name an upload. While one of them waits or runs, the upload cannot be deleted.

import { h } from "../dom.js";
import { count, date, deed, title } from "../components/format.js";
import { get } from "../server/http.js";
import { learn, uses } from "../components/names.js";
import { badge, trouble } from "../components/parts.js";

const MOST = 50; // jobs that are listed
const PAGE = 100; // what the server gives at a time

export function usedBy(id, signal) {
  const place = h("div", {}, h("p", { class: "loading" }, "Looking for jobs…"));
  const load = () => draw().catch((error) => error.name !== "AbortError" && place.replaceChildren(trouble(error, load)));

  async function draw() {
    const { data, more } = await users(id, {}, signal);
    const waits = (job) => ["queued", "running"].includes(job.status);
    // Where not all are listed, one that waits may be older than those.
    const parts = more ? await Promise.all(["queued", "running"].map((status) => users(id, { status }, signal))) : [{ data: data.filter(waits), more }];
    const going = parts.flatMap((part) => part.data);
    const listed = [...data, ...going.filter(({ id: own }) => !data.some((job) => job.id === own))];
    await learn(listed);
    if (!listed.length) return place.replaceChildren(h("p", { class: "muted" }, "No jobs use it."));
    const least = parts.some((part) => part.more) ? "At least " : "";
    place.replaceChildren(
      going.length ? h("p", {}, going.length === 1 ? "One queued or running job uses it: it can be deleted when that job has ended."
        : `${least}${count(going.length)} queued or running jobs use it: it can be deleted when they have ended.`) : "",
      h("ul", { class: "users" }, listed.map((job) => h("li", {}, badge(job.status), h("a", { href: `#/jobs/${job.id}` }, title(job)),
        h("span", { class: "muted" }, `${deed(job).replace(/ on .*/, "")} · ${date(job.created_at)}`)))),
      more ? h("p", {}, h("a", { href: `#/runs?${new URLSearchParams({ q: id })}` }, "All jobs that mention it")) : "");
  }

  load();
  return h("section", { class: "card" }, h("h2", {}, "Used by"), place);
}

/** The newest that use it, and whether there are more; a search alone finds those, too, that mention it in a note. */
async function users(id, query, signal) {
  const data = [];
  for (let after = null; ;) {
    const page = await get(`jobs?${new URLSearchParams({ ...query, q: id, limit: PAGE, results: false, ...(after && { after }) })}`, { signal });
    data.push(...page.data.filter((job) => uses(job.request, id)));
    if (!page.has_more || data.length > MOST) return { data: data.slice(0, MOST), more: data.length > MOST };
    after = page.data.at(-1).id;
  }
}
