// One job: where it stands, what it measures, what it made, and what can be done about it.

import { announce, h, isolated, say } from "../dom.js";
import { flat } from "../components/columns.js";
import { copies } from "./copying.js";
import { measurements } from "../components/csv.js";
import { ENDED, STATUS, date, deed, fault, number, percent, standing, title } from "../components/format.js";
import { chips, editable } from "../components/labels.js";
import { learn, mentions, renamed, worded } from "../components/names.js";
import { ask, get, key, once, post } from "../server/http.js";
import { eventsOf } from "./events.js";
import { logOf } from "./log.js";
import { notifier } from "./notify.js";
import { drawResults } from "./results.js";
import { share } from "./share.js";
import { badge, bar, card, pairs, refused, setBadge, setBar, sure, trouble } from "../components/parts.js";
import { rights, rightsTo } from "../server/rights.js";
import { follow, onReturn } from "../server/stream.js";
import { training as trainingCard } from "./training.js";

export function show(main, id) {
  document.title = "Job · tcnn";
  const url = `jobs/${id}`;
  const state = { job: null, rights: null, stop: () => {}, told: "", known: null };
  main.append(h("p", { class: "loading" }, "Loading the job…"));

  const current = () => state.job;
  const saved = draw;
  const heading = h("h1");
  const sign = badge("queued");
  const about = h("p", { class: "muted" });
  const why = h("p", { class: "hint" });
  const actions = h("div", { class: "actions" });
  const labels = [
    editable("name", { current, saved, draw: () => heading }),
    editable("tags", { current, saved, draw: (job) => (job.tags.length ? chips(job) : h("span", { class: "muted" }, "No tags")) }),
    editable("note", { current, saved, draw: (job) => h("span", { class: job.note ? "note" : "muted" }, job.note ?? "No note") }),
  ];
  const refusal = h("div", { role: "alert" });
  const progress = bar("Progress");
  const where = h("p", { class: "standing" });
  const facts = h("dl", { class: "facts" });
  const now = card("Progress", progress, where, facts);
  const results = h("div", { class: "results" });
  const training = trainingCard();
  const asked = card("Settings", h("dl", { class: "facts request" }));
  const log = logOf(id);
  const events = eventsOf(id, { created: () => state.job?.created_at, taken: log.taken });
  const notice = notifier(id);

  const body = [
    h("div", { class: "head" }, h("div", {}, h("p", { class: "crumb" }, h("a", { href: "#/" }, "Jobs"), " / ", h("code", {}, id)),
      h("div", { class: "titled" }, labels[0].element, sign), about, why, h("div", { class: "labels" }, labels.slice(1).map((one) => one.element))), actions),
    refusal, now, results, training.element, asked, copies(current), events.element, log.element,
  ];

  function draw(job) {
    if (!main.isConnected || state.gone) return; // the page was left meanwhile
    const [before, first] = [state.job, state.job === null];
    state.job = job;
    if (first) main.replaceChildren(...body);
    head(job);
    if (first || labelled(before) !== labelled(job)) {
      for (const one of labels) if (!one.isOpen()) one.redraw();
      if (!first) renamed(job);
    }
    if (first) {
      state.known = learn([job]).then((news) => news && (head(state.job), settings()));
    }
    setBadge(sign, job.status);
    notice.heard(job);
    drawProgress(job);
    drawActions(job);
    // Results wait for the names in them: drawn a second time, they would close under the reader's hand.
    state.known.then(() => drawResults(state.job, results, url));
    if (first) settings();
  }

  function head(job) {
    document.title = `${STATUS[job.status].icon} ${title(job)} · tcnn`;
    say(heading, title(job));
    say(about, `${deed(job)} · submitted ${date(job.created_at)}${state.rights?.several ? ` · tenant ${job.tenant}` : ""}`);
  }

  function settings() {
    asked.querySelector("dl").replaceChildren(...pairs(flat(state.job.request).map(([name, value]) => [name, worded(value)])));
  }

  function drawProgress(job) {
    now.hidden = job.status === "succeeded" || job.status === "cancelled" && !job.progress;
    progress.hidden = job.status !== "running";
    if (job.status === "running") setBar(progress, job.progress?.percent);
    say(where, standing(job));
    where.classList.toggle("bad", job.status === "failed");
    const at = job.progress ?? {};
    const shown = [
      ["Loss", at.loss === undefined || at.loss === null ? null : number(at.loss)],
      ["Best so far", at.top1 === undefined || at.top1 === null ? null : percent(at.top1)],
      ["Temperature τ", at.temperature ? number(at.temperature) : null],
      ["Learning rate", at.lr ? number(at.lr) : null],
      ["Images per second", at.images_per_second ? number(at.images_per_second) : null],
      ["Attempt", job.attempt > 1 ? `${job.attempt} of ${job.max_attempts}` : null],
      ["Error", job.error ? fault(job.error.code) : null],
    ].filter(([, value]) => value !== null);
    facts.replaceChildren(...pairs(shown));
    // Said aloud at every tenth of the way, not at every step.
    const step = job.status === "running" ? `${job.progress?.phase} ${Math.floor((job.progress?.percent ?? 0) / 10) * 10} %` : STATUS[job.status].word;
    if (state.told && state.told !== step) announce(`${title(job)}: ${step}`);
    state.told = step;
  }

  function drawActions(job) {
    const wanted = [];
    const may = state.rights ? rightsTo("job", job.tenant, state.rights) : { changes: true, cancels: true, why: "" };
    const clones = (state.rights?.changes ?? true) && (may.changes || !mentions(job.request));
    say(why, key.isLent() ? "" : may.why);
    main.classList.toggle("fixed", !may.changes);
    if (!ENDED.has(job.status) && may.cancels) wanted.push(["Cancel", "cancel", job.cancel_requested]);
    const again = job.status === "failed" || job.status === "cancelled";
    if (again && may.changes) wanted.push(["Resume", "resume", false]);
    if (ENDED.has(job.status) && may.changes) wanted.push(["Delete", "delete", false]);
    const drawn = JSON.stringify([wanted, again, Boolean(job.result?.checkpoint), may, clones]);
    if (actions.dataset.drawn === drawn) return;
    const focused = actions.contains(document.activeElement);
    actions.dataset.drawn = drawn;
    actions.replaceChildren(
      ...(job.result?.checkpoint && may.changes ? [h("a", { class: "button main", href: `#/jobs/${id}/attention` }, "Explore attention"),
        h("a", { class: "button", href: `#/finetune?job=${id}` }, "Fine-tune it"), h("a", { class: "button", href: `#/evaluate?job=${id}` }, "Evaluate it")] : []),
      ...(clones ? [h("a", { class: again ? "button main" : "button", href: `#/${job.kind}?from=${id}` }, again ? "Edit and run again" : "Clone and edit")] : []),
      ...wanted.map(([word, verb, disabled]) =>
        h("button", { type: "button", class: verb === "delete" ? "danger" : "", disabled, onclick: () => act(verb) }, disabled ? "Stopping…" : word)),
      ...(ENDED.has(job.status) || !notice.element ? [] : [notice.element]),
      ...(key.get() && !key.isLent() && may.changes ? [h("button", { type: "button", onclick: () => share(job) }, "Share")] : []),
    );
    if (focused) (actions.querySelector("button:not(:disabled), a") ?? heading).focus();
  }

  async function act(verb) {
    refusal.replaceChildren();
    if (verb === "delete" && !(await sure({ title: "Delete this job?", text: `${isolated(title(state.job))}: its files, log and history are deleted with it. This cannot be undone.` }))) return;
    try {
      if (verb === "delete") {
        await ask(url, { method: "DELETE" });
        announce("The job was deleted.");
        location.replace("#/"); // back leads to where one came from, and not to what is gone
        return;
      }
      draw(await post(`${url}/${verb}`, undefined, { headers: { "Idempotency-Key": once() } }));
      announce(verb === "cancel" ? "The job will stop." : "The job is queued again.");
      listen();
    } catch (error) {
      refused(refusal, error);
      look(); // it may stand otherwise than this page has it
    }
  }

  async function refresh() {
    draw(await get(url));
    log.tail();
  }

  const measured = throttled(async () => {
    const table = state.job && await measurements(state.job);
    if (table) training.draw(table);
  }, 2500);

  function listen() {
    state.stop();
    if (!main.isConnected) return;
    events.clear();
    const happened = (one) => (events.add(one), settle());
    state.stop = follow(`${url}/events`, {
      message(event, data) {
        if (event !== "progress") return happened(data);
        if (state.job?.status !== "running") refresh().catch(() => {});
        else draw({ ...state.job, progress: data });
        measured();
        log.tail();
      },
      ended: () => {
        refresh().then(measured).catch(() => {});
        return !ENDED.has(state.job?.status);
      },
      async poll() {
        await refresh(); // before its events: if it has ended, its last one is among them
        const over = ENDED.has(state.job.status);
        await events.ask(happened);
        measured();
        return !over;
      },
      refused: gone,
    });
  }

  /** An answer that will not change: nothing more is asked. */
  function gone(error) {
    state.gone = true;
    leave();
    main.replaceChildren(h("h1", {}, error.status === 404 ? "Job not found" : "The job cannot be shown"), trouble(error.message), ...elsewhere());
  }

  // A stream begins with all that happened: the job is asked for once when it falls silent, not at every line.
  const settle = throttled(() => refresh().then(measured).catch(() => {}), 300);

  // Its place in the queue, what it is called, that another window has resumed or deleted it: all that changes without an
  // event, or after the last one, is asked for.
  // One at a time: of two answers the older might come last.
  let asking = false;

  async function look() {
    if (asking || document.hidden || state.job === null || state.gone || labels.some((one) => one.isOpen())) return;
    const before = state.job.status;
    asking = true;
    try {
      const job = await get(url);
      if (state.job.status !== before) return; // this page has heard something newer
      draw(job);
      if (ENDED.has(before) && !ENDED.has(job.status)) listen();
    } catch (error) {
      if ([401, 403, 404].includes(error.status)) gone(error);
    } finally {
      asking = false;
    }
  }
  const clock = setInterval(() => state.job?.status === "queued" && !document.hidden && say(where, standing(state.job)), 1000); // a next try
  const looking = setInterval(look, 5000);
  const unwatch = onReturn(look);

  function leave() {
    state.stop();
    measured.cancel();
    settle.cancel();
    log.stop();
    clearInterval(clock);
    clearInterval(looking);
    unwatch();
  }

  const load = () => refresh().then(() => (measured(), listen())).catch((error) => {
    main.replaceChildren(h("h1", {}, error.status === 404 ? "Job not found" : "The job cannot be shown"),
      trouble(error, error.status === 404 ? null : load), ...elsewhere());
  });
  load();
  rights().then((now) => {
    state.rights = now;
    if (state.job && !state.gone) draw(state.job);
  }, () => {});
  return leave;
}

/** The way on from a job that is not to be had; who has a link to it alone has none. */
function elsewhere() {
  return key.isLent() ? [] : [h("p", {}, h("a", { href: "#/" }, "All jobs"))];
}

function labelled({ name, tags, note }) {
  return JSON.stringify([name, tags, note]);
}

/** At most one call a while, and always a last one. */
function throttled(call, milliseconds) {
  let timer = null;
  let again = false;
  const run = () => {
    if (timer) {
      again = true;
      return;
    }
    timer = setTimeout(() => {
      timer = null;
      if (again) {
        again = false;
        run();
      }
    }, milliseconds);
    Promise.resolve(call()).catch(() => {});
  };
  run.cancel = () => clearTimeout(timer);
  return run;
}
