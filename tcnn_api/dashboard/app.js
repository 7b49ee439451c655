// The frame: which page is shown, the key, the theme, and whether the server is there.
// Its rooms, and which imports which: docs/architecture.md.

import { announce, h, say } from "./dom.js";
import { guardDrops } from "./components/dropping.js";
import { untilBack } from "./components/parts.js";
import { forgetNames } from "./components/names.js";
import { keepPlaces, placed } from "./components/places.js";
import { Problem, get, key, onKeyForgotten, onKeyGiven, onKeyNeeded, onStanding, reached, whose } from "./server/http.js";
import { rights } from "./server/rights.js";
import * as edited from "./forms/edit-request.js";
import * as attention from "./attention/attention.js";
import * as checkpoint from "./uploads/checkpoint.js";
import * as checkpoints from "./uploads/checkpoints.js";
import * as compare from "./runs/compare.js";
import * as data from "./uploads/data.js";
import * as dataset from "./uploads/dataset.js";
import * as evaluate from "./forms/evaluate.js";
import * as job from "./job/job.js";
import * as jobs from "./runs/jobs.js";
import * as runs from "./runs/runs.js";
import * as shared from "./job/shared-job.js";
import * as submit from "./forms/submit.js";
import * as system from "./system.js";

const PAGES = [
  [/^\/?(?:\?(.*))?$/, (main, query) => jobs.show(main, new URLSearchParams(query ?? "")), "jobs"],
  [/^\/runs(?:\?(.*))?$/, (main, query) => runs.show(main, new URLSearchParams(query ?? "")), "runs"],
  [/^\/compare(?:\?(.*))?$/, (main, query) => compare.show(main, new URLSearchParams(query ?? "")), "runs"],
  [/^\/transform(?:\?(.*))?$/, (main, query) => submit.show(main, "transform", new URLSearchParams(query ?? "")), "transform"],
  [/^\/evaluate\?(?:.*&)?from=([\w-]+)/, (main, id) => edited.show(main, "evaluate", id), "jobs"],
  [/^\/evaluate(?:\?(.*))?$/, (main, query) => evaluate.show(main, new URLSearchParams(query ?? "")), "evaluate"],
  [/^\/finetune(?:\?(.*))?$/, (main, query) => submit.show(main, "finetune", new URLSearchParams(query ?? "")), "finetune"],
  [/^\/data(?:\?(.*))?$/, (main, query) => data.show(main, new URLSearchParams(query ?? "")), "data"],
  [/^\/data\/([\w-]+)$/, (main, id) => dataset.show(main, id), "data"],
  [/^\/checkpoints(?:\?(.*))?$/, (main, query) => checkpoints.show(main, new URLSearchParams(query ?? "")), "checkpoints"],
  [/^\/(checkpoints|weights)\/([\w-]+)$/, (main, kind, id) => checkpoint.show(main, kind, id), "checkpoints"],
  [/^\/system$/, (main) => system.show(main), "system"],
  [/^\/shared\/([\w-]+)$/, shared.show, "none"],
  [/^\/jobs\/([\w-]+)$/, (main, id) => job.show(main, id), "jobs"],
  [/^\/jobs\/([\w-]+)\/attention(?:\?(.*))?$/, (main, id, query) => attention.show(main, id, new URLSearchParams(query ?? "")), "jobs"],
];

const main = document.getElementById("main");
let leave = () => {};
let shown = null;

/** Show what the address asks for. A page's `show` returns what ends it. */
function route() {
  const address = location.hash.replace(/^#/, "");
  leave();
  leave = () => {};
  for (const dialog of document.querySelectorAll("dialog[open]:not(.key)")) dialog.close(); // it asked about what was shown
  const place = h("div"); // of this page alone: an answer that comes after it was left is drawn into nothing
  main.replaceChildren(place);
  for (const [pattern, show, nav] of PAGES) {
    const found = pattern.exec(address);
    if (!found) continue;
    for (const link of document.querySelectorAll("[data-nav]")) {
      if (link.dataset.nav === nav) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    leave = show(place, ...found.slice(1)) ?? (() => {});
    if (key.isLent()) document.querySelector("dialog.key").close(); // it asked for what a link's page has no need of
    if (shown !== null) main.focus({ preventScroll: true });
    placed(main);
    shown = address;
    return;
  }
  document.title = "Not found · tcnn";
  place.append(h("h1", {}, "Page not found"), h("p", {}, h("a", { href: "#/" }, "All jobs")));
}

function theme() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const draw = () => {
    button.textContent = dark() ? "☀" : "☾";
    button.setAttribute("aria-label", dark() ? "Use light colours" : "Use dark colours");
    button.title = button.getAttribute("aria-label");
  };
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try {
      localStorage.setItem("tcnn-theme", root.dataset.theme);
    } catch {
      // not kept, then
    }
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
}

function connection() {
  const banner = document.getElementById("connection");
  let there = { server: true, database: true };
  let timer;
  onStanding((now) => {
    const back = there.server ? "The database is available again." : "Connected again.";
    there = now;
    clearTimeout(timer);
    const lost = !there.server || !there.database;
    banner.className = lost ? "connection lost" : "connection back";
    say(banner, !there.server ? "Connection lost. Trying again…" : lost ? "The server’s database is not responding, so what you see may be out of date. Trying again…" : back);
    if (!lost) timer = setTimeout(() => ((banner.className = "connection"), say(banner, "")), 4000);
  });
  // Even where no stream is open somebody must notice that they are back.
  let trying = false;
  const again = async () => {
    if ((there.server && there.database) || trying) return;
    trying = true;
    await (there.server ? ready() : get("healthz", { within: 5000 })).catch(() => {});
    trying = false;
  };
  setInterval(again, 2000);
  addEventListener("online", again);
}

/** Ask whether the database answers. */
async function ready() {
  await get("readyz").catch((error) => {
    if (error.status !== 503 || error.fields.some(({ field }) => field === "database")) throw error; // a full disk is another matter
  });
  reached(true);
}

/** A dialog for the key: kept in the windows that are open and nowhere else. */
function keys() {
  const button = document.getElementById("key");
  const field = h("input", { id: "key-field", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "key-error" });
  const error = h("p", { class: "error", id: "key-error", role: "alert" });
  const forget = h("button", { type: "button", class: "quiet", onclick: () => (key.forget(), forgotten()) }, "Forget the key");
  const heading = h("h2", { id: "key-title" });
  const form = h(
    "form", { method: "dialog" },
    heading,
    h("p", {}, "The key is kept until you close the last window of this server."),
    h("label", { for: "key-field" }, "API key"), field, error,
    h("div", { class: "actions" }, h("button", { type: "submit", class: "main" }, "Use this key"), forget),
  );
  const dialog = h("dialog", { "aria-labelledby": "key-title", class: "key" }, form);
  document.body.append(dialog);

  function open(wrong) {
    button.hidden = false;
    forget.hidden = !key.get();
    say(heading, key.get() && !wrong ? "Use another key" : "This server requires a key");
    say(error, wrong ? "The server does not recognise this key. Check it, or ask for another." : "");
    if (!dialog.open) {
      field.value = "";
      dialog.showModal();
    }
    field.focus();
  }

  async function accept(given) {
    const { tenant } = await whose(given);
    if (given !== key.get()) key.set(given); // only one that is good takes another's place
    told(tenant);
  }

  function told(tenant) {
    button.hidden = false;
    button.replaceChildren("Key", h("span", { class: "tenant" }, ` of ${tenant}`));
  }

  /** Nothing that another key has opened stays: neither what is shown, nor the streams that it came by. A link's page has its own. */
  function changed() {
    forgetNames();
    if (!key.isLent()) route();
    stand();
  }

  /** Say whose the key is; what it is not for is not offered. */
  function stand() {
    if (key.isLent()) return;
    const own = key.own();
    rights().then(({ tenant, changes }) => {
      if (own !== key.own()) return;
      if (own) told(tenant);
      document.body.classList.toggle("looking", !changes);
    }).catch(() => {});
  }

  function forgotten() {
    button.replaceChildren("Key");
    button.hidden = true;
    changed();
    whose("").then(() => dialog.close()).catch((problem) => problem.status === 401 && !key.get() && open(false));
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await accept(field.value.trim());
      field.value = "";
      dialog.close();
      announce("The key was accepted.");
      changed();
    } catch (problem) {
      const wrong = problem instanceof Problem && problem.status === 401;
      say(error, wrong ? "The server does not recognise this key. Check it, or ask for another." : problem.message);
      if (wrong) field.select(); // nobody sees what is in it
      if (problem.passes) untilBack(() => error.textContent === problem.message && say(error, ""));
      field.focus();
    }
  });
  button.addEventListener("click", () => open(false));
  button.hidden = !key.get();
  let asking = null;
  onKeyNeeded((had) => {
    if (dialog.open || key.isLent()) return; // a link's page says itself that it has ended
    const ask = () => key.isLent() || open(had); // unless a link was opened meanwhile
    asking ??= key.borrow().then(async (found) => (found ? (await accept(found), changed()) : ask())).catch(ask).finally(() => (asking = null));
  });
  onKeyGiven((waited) => {
    if (asking) return; // it hears of it, too
    button.hidden = false;
    button.replaceChildren("Key"); // until it is known whose
    if (waited) dialog.close();
    else announce("Another window has changed the key.");
    changed();
  });
  onKeyForgotten(forgotten);
  stand();
}

// What stays in view below the bar must know how high it is: on a phone it has two lines.
const bar = document.querySelector("header.bar");
new ResizeObserver(() => document.documentElement.style.setProperty("--bar", `${bar.offsetHeight}px`)).observe(bar);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address after # is the page's
  main.focus();
});
keepPlaces();
guardDrops();
theme();
connection();
keys();
addEventListener("hashchange", route);
route();
