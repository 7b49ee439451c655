// How the service stands: who waits and for how long, what has ended, workers and their GPUs, disk, versions.

import { h, say } from "./dom.js";
import { bytes, count, date, duration, percent, since, some } from "./components/format.js";
import { get } from "./server/http.js";
import { trouble } from "./components/parts.js";
import { scrolling } from "./components/scrolling.js";

const EVERY = 10_000; // milliseconds
const OUTCOMES = { succeeded: "c2", failed: "c1", cancelled: "c6" };

export function show(main) {
  document.title = "System · tcnn";
  const leaving = new AbortController();
  const place = h("div", {}, h("p", { class: "loading" }, "Looking…"));
  const told = h("p", { class: "muted", role: "status" });
  main.append(h("div", { class: "head" }, h("h1", {}, "System"), told), place);
  let timer;

  async function look(pressed) {
    clearTimeout(timer); // of before "Try again"
    if (!document.hidden) {
      try {
        const found = await get("system", { signal: leaving.signal });
        const kept = new Map([...place.querySelectorAll("[data-scroll]")].map((one) => [one.dataset.scroll, one.scrollLeft]));
        const focused = place.contains(document.activeElement) ? document.activeElement.dataset.scroll : null;
        place.replaceChildren(...draw(found));
        for (const one of place.querySelectorAll("[data-scroll]")) {
          one.scrollLeft = kept.get(one.dataset.scroll) ?? 0;
          if (one.dataset.scroll === focused) one.focus();
        }
        say(told, found.whole ? "All tenants" : `Tenant ${found.tenant}`);
      } catch (error) {
        if (error.name === "AbortError") return;
        const said = place.querySelector(":scope > [role=alert] p")?.textContent;
        if (pressed || said !== error.message) place.replaceChildren(trouble(error.message, look)); // the same is not read out every time
        if (error.status === 401) return; // the page is made anew when a key is given
      }
    }
    timer = setTimeout(() => look(), EVERY);
  }

  look();
  return () => (leaving.abort(), clearTimeout(timer));
}

function draw(found) {
  return [summary(found), queue(found), ended(found.ended), found.whole ? workers(found.workers) : notYours(), versions(found)];
}

function sum(list, name) {
  return list.reduce((total, one) => total + (one[name] ?? 0), 0);
}

function summary({ tenants, workers: all, disk, whole, quotas }) {
  const present = (all ?? []).filter((one) => one.present);
  const oldest = Math.max(...tenants.map((one) => one.oldest_seconds ?? -1));
  const of = (used, most, shown = count) => (most === null || most === undefined ? shown(used) : `${shown(used)} of ${shown(most)}`);
  const own = whole ? {} : quotas ?? {};
  return h("section", { class: "card" }, h("dl", { class: "facts big" }, [
    ["Queued", of(sum(tenants, "queued"), own.queued)], ["Running", of(sum(tenants, "running"), own.running)],
    ["Longest wait", oldest < 0 ? "–" : duration(oldest)],
    ...(whole ? [["Slots in use", `${count(sum(present, "busy"))} of ${count(sum(present, "slots"))}`], ["Workers", count(present.length)], [`Disk free, ${percent(disk.free / disk.total, 0)}`, bytes(disk.free)]] : []),
    ["Stored", of(sum(tenants, "stored"), own.stored, bytes)],
  ].map(([word, value]) => h("div", {}, h("dt", {}, word), h("dd", {}, value)))),
  whole && !present.length && h("p", { class: "bad" }, "✕ No worker is running, so queued jobs will not start. Start one with tcnn worker."),
  disk && disk.free / disk.total < 0.05 && h("p", { class: "bad" }, "✕ The disk is nearly full: delete jobs or data sets, or set TCNN_RETENTION_DAYS."));
}

function queue({ tenants }) {
  return table("Queue", "The queue by tenant", ["Tenant", "Queued", "Waiting for other jobs", "Longest wait", "Running", "Slots", "Stored"],
    tenants.map((one) => [one.tenant, count(one.queued), count(one.blocked), one.oldest_seconds === null ? "–" : duration(one.oldest_seconds), count(one.running), count(one.slots), bytes(one.stored)]),
    "Nothing is queued, running or stored.");
}

/** A bar for each of the last hours, the newest at the right; the table of the same numbers is for those who do not see it. */
function ended(hours) {
  const most = Math.max(1, ...hours.map((one) => sum(Object.keys(OUTCOMES).map((name) => ({ jobs: one[name] })), "jobs")));
  const total = (name) => sum(hours, name);
  const chart = h("div", { class: "hours", "aria-hidden": "true" }, [...hours].reverse().map((one) => {
    const parts = Object.entries(OUTCOMES).map(([name, colour]) => {
      const part = h("span", { class: colour });
      part.style.setProperty("--share", one[name] / most);
      return part;
    });
    const ago = one.hours_ago ? `${one.hours_ago} to ${one.hours_ago + 1} hours ago` : "in the last hour";
    return h("span", { class: "hour", title: `${ago}: ${Object.keys(OUTCOMES).map((name) => `${one[name]} ${name}`).join(", ")}` }, parts);
  }));
  return h("section", { class: "card" }, h("h2", {}, "Jobs ended in the last 24 hours"),
    h("ul", { class: "legend" }, Object.entries(OUTCOMES).map(([name, colour]) => h("li", { class: colour }, h("b", {}, `${count(total(name))} ${name}`)))),
    chart, h("p", { class: "hint ends" }, h("span", {}, "24 hours ago"), h("span", {}, `hourly maximum: ${count(most)}`), h("span", {}, "now")));
}

function workers(all) {
  const memory = (gpu) => (gpu.memory_total ? `${bytes(gpu.memory_used)} of ${bytes(gpu.memory_total)}` : "memory unknown");
  return table("Workers", "Workers", ["Worker", "State", "Slots in use", "GPUs", "Version", "Last seen"],
    all.map((one) => [h("span", {}, one.name, h("span", { class: "muted" }, ` on ${one.host}`)), one.present ? (one.keeps_house ? "✓ online, does the housekeeping" : "✓ online") : "✕ no heartbeat",
      `${count(one.busy)} of ${count(one.slots)}${one.waiting ? `, ${some(one.waiting, "waiting job")}` : ""}`, one.gpus.length ? h("ul", { class: "gpus" }, one.gpus.map((gpu) => h("li", {}, `${gpu.index}: ${gpu.name}, ${memory(gpu)}`))) : "none",
      one.version, h("span", { title: `Online since ${date(one.started_at)}` }, since(one.heartbeat_at))]),
    "No worker has been seen in the last day.");
}

function notYours() {
  return h("section", { class: "card" }, h("h2", {}, "Workers"), h("p", { class: "muted" }, "Workers, GPUs and the disk are shown only with an admin key. You see your own jobs and storage."));
}

function versions({ versions: found }) {
  return h("section", { class: "card" }, h("h2", {}, "Versions of this server"), h("dl", { class: "facts" }, Object.entries(found).map(([name, version]) => h("div", {}, h("dt", {}, name), h("dd", {}, version)))));
}

function table(title, label, heads, rows, none) {
  return h("section", { class: "card" }, h("h2", {}, title), rows.length
    ? scrolling(label, { "data-scroll": title }, h("table", {},
      h("thead", {}, h("tr", {}, heads.map((word) => h("th", { scope: "col" }, word)))),
      h("tbody", {}, rows.map(([first, ...rest]) => h("tr", {}, h("th", { scope: "row", class: "long" }, first), rest.map((cell) => h("td", {}, cell)))))))
    : h("p", { class: "muted" }, none));
}
