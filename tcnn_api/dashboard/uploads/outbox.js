// Files on their way to the server, in a list that stands beside every page: an upload goes on wherever the user goes meanwhile.

import { announce, h, isolated, say } from "../dom.js";
import { bytes, percent, some } from "../components/format.js";
import { callsOfShown } from "../components/shown.js";
import { Away, key, once, upload, whenBack } from "../server/http.js";

const TRIES = 3; // by itself: what breaks off each time, as behind a proxy that takes no file of its size, waits to be asked for
const PAGES = { datasets: "data", checkpoints: "checkpoints", weights: "weights" };
const queues = new Map(); // of each kind one is sent after the other
const listeners = callsOfShown("upload");
const list = h("ul", { class: "sending" });
const summary = h("summary", {}, "Uploads");
const clear = h("button", { type: "button", class: "quiet", onclick: () => [...list.children].forEach(remove) }, "Dismiss all");
const shown = h("details", { open: matchMedia("(min-width: 46rem)").matches }, summary, list, clear); // a phone's page needs its place
const panel = document.getElementById("outbox");
panel.append(shown);
new ResizeObserver(() => document.documentElement.style.setProperty("--outbox", `${panel.offsetHeight}px`)).observe(panel); // nothing of a page ends behind it

/** What the server found in an upload, in a line. */
export function found(made) {
  if (made.classes) {
    const missed = made.left_out ? ` Left out: ${some(made.left_out, "file")} without the extension of an image.` : "";
    return `${some(made.images, "image")} of ${some(made.classes.length, "class", "classes")} (${made.classes.slice(0, 5).map(isolated).join(", ")}${made.classes.length > 5 ? ", …" : ""}).${missed}`;
  }
  if (made.tensors) return `${some(made.tensors, "tensor")}${made.architecture ? ` of ${made.architecture}` : ""}.`;
  return `${made.base_model}.`;
}

/** Calls `call(made, path)` for whatever has arrived, from whichever page it was sent, as long as `element` is part of a page. */
export const onUploaded = listeners.add;

/**
 * Send what `making()` resolves with to the path that `route(file)` resolves with, after all others of its `queue`. `begun()`,
 * `done(made)`, `failed(message)` and `stopped()` tell whoever asked for it what becomes of it, as the list tells everybody. It is
 * sent with the key that the window has now, and with another one only if somebody says so: that may be another tenant's.
 */
export function send(name, { queue, making, route, begun = () => {}, done = () => {}, failed = () => {}, stopped = () => {} }) {
  const leaving = new AbortController();
  const { signal } = leaving;
  const idempotency = once(); // the server may have it, though its answer was lost
  let own = key.own();
  let left = TRIES;
  const bar = h("progress", { max: "1", "aria-label": `Upload of ${name}` });
  const word = h("span", { class: "muted" });
  const called = h("b", { title: name }, name);
  const again = h("button", { type: "button", "aria-label": `Try again to send ${name}`, hidden: true, onclick: () => ((left = TRIES), (own = key.own()), begin()) }, "Try again");
  const stop = h("button", { type: "button", class: "quiet", onclick: () => (leaving.abort(), remove(item)) });
  const item = h("li", {}, called, word, bar, h("span", { class: "buttons" }, again, stop));
  list.append(item);
  signal.addEventListener("abort", () => item.classList.contains("going") && stopped());
  begin();

  function state(kind) {
    item.className = kind;
    bar.hidden = kind !== "going";
    say(stop, kind === "going" ? "Stop" : "Dismiss");
    stop.setAttribute("aria-label", `${stop.textContent} ${name}`);
    word.className = kind === "refused" ? "error" : "muted";
    if (kind === "refused") word.setAttribute("role", "alert");
    else word.removeAttribute("role"); // a voice that reads out every percent is no help
    draw();
  }

  function begin() {
    if (again === document.activeElement) stop.focus();
    again.hidden = true;
    bar.removeAttribute("value");
    delete item.dataset.gone;
    say(word, "Waiting…");
    state("going");
    begun();
    queues.set(queue, (queues.get(queue) ?? Promise.resolve()).then(() => signal.aborted || attempt()));
  }

  async function attempt() {
    list.scrollTop = item.offsetTop - list.offsetTop;
    try {
      const file = await making();
      const path = await route(file);
      if (signal.aborted) return;
      if (key.own() !== own) throw new OtherKey();
      const made = await upload(path, file, { idempotency, signal, own, progress: (share) => told(share, file.size) });
      say(word, found(made));
      state("sent");
      if (key.own() !== own) return; // it is among what the other key opens, and nothing to this one's pages
      called.replaceChildren(h("a", { href: `#/${PAGES[path]}/${made.id}` }, name));
      announce(`${isolated(made.name)} was uploaded: ${found(made)}`);
      done(made);
      listeners.make(made, path);
    } catch (error) {
      if (error.name === "AbortError") return;
      const said = error.fields?.[0]?.message ?? error.message;
      shown.open = true;
      state("refused");
      say(word, said);
      again.hidden = !passing(error);
      failed(said);
      if (error.passes && left) whenBack(resume);
    }
  }

  /** What broke off goes on its way again as soon as the server is back, unless somebody was faster, or has dismissed it. */
  function resume() {
    if (!item.isConnected || again.hidden) return;
    left -= 1;
    begin();
  }

  function told(share, size) {
    if (share < 1) bar.value = share;
    else bar.removeAttribute("value");
    say(word, share < 1 ? `${percent(share, 0)} of ${bytes(size)}` : "Sent. The server is checking it…");
    item.dataset.gone = percent(share, 0);
    draw();
  }
}

class OtherKey extends Error {
  constructor() {
    super("The key has changed since this file was chosen. “Try again” uses the new one.");
  }
}

/** Whether what was not taken may be taken another time. */
function passing(error) {
  return error instanceof Away || error instanceof OtherKey || error.status >= 500 || error.status === 429 || error.status === 401;
}

/** Whoever goes on with the keyboard goes on beside it. */
function remove(item) {
  const focused = item.contains(document.activeElement) || clear === document.activeElement;
  const beside = item.nextElementSibling ?? item.previousElementSibling;
  item.remove();
  draw();
  if (focused) (beside?.querySelector("button:not([hidden])") ?? document.getElementById("main")).focus();
}

/** How many there are of each; the browser asks before it closes a window from which something is still to go. */
function draw() {
  const items = [...list.children];
  const states = items.map((item) => item.className);
  const gone = items.filter((item) => item.className === "going" && item.dataset.gone).map((item) => item.dataset.gone);
  const counts = Object.entries({ going: "in progress", sent: "sent", refused: "rejected" })
    .map(([kind, words]) => [states.filter((one) => one === kind).length, words, kind === "going" && gone.length ? `(${gone.join(", ")})` : ""])
    .filter(([number]) => number);
  say(summary, `Uploads: ${counts.map((one) => one.join(" ").trim()).join(", ")}`);
  panel.hidden = !states.length;
  clear.hidden = states.length < 2 || states.includes("going");
  if (states.includes("going")) addEventListener("beforeunload", ask);
  else removeEventListener("beforeunload", ask); // with it a browser keeps no page to go back to
}

function ask(event) {
  event.preventDefault();
}
