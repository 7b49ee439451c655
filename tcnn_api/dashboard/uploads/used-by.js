// A card: the jobs that name an upload. While one of them waits or runs, the upload cannot be deleted.

import { h } from "../dom.js";
import { date, deed, title } from "../components/format.js";
import { get } from "../server/http.js";
import { learn } from "../components/names.js";
import { badge, trouble } from "../components/parts.js";

const MOST = 50;

export function usedBy(id, signal) {
  const place = h("div", {}, h("p", { class: "loading" }, "Looking for jobs…"));
  const load = () => get(`jobs?${new URLSearchParams({ q: id, limit: MOST, results: false })}`, { signal }).then(async (page) => {
    await learn(page.data);
    if (!page.data.length) return place.replaceChildren(h("p", { class: "muted" }, "No jobs use it."));
    const going = page.data.filter((job) => ["queued", "running"].includes(job.status)).length;
    place.replaceChildren(
      going ? h("p", {}, going === 1 ? "One queued or running job uses it: it can be deleted when that job has ended." : `${going} queued or running jobs use it: it can be deleted when they have ended.`) : "",
      h("ul", { class: "users" }, page.data.map((job) => h("li", {}, badge(job.status), h("a", { href: `#/jobs/${job.id}` }, title(job)),
        h("span", { class: "muted" }, `${deed(job).replace(/ on .*/, "")} · ${date(job.created_at)}`)))),
      page.has_more ? h("p", {}, h("a", { href: `#/runs?${new URLSearchParams({ q: id })}` }, "All of them")) : "");
  }).catch((error) => error.name !== "AbortError" && place.replaceChildren(trouble(error, load)));
  load();
  return h("section", { class: "card" }, h("h2", {}, "Used by"), place);
}
