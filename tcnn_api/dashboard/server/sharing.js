// Streams that all windows of a browser have together: a browser opens six connections to a server, and no more.

import { open } from "./connection.js";

const BEGIN = 5_000; // milliseconds in which a worker that has its files says a first word
const ALIVE = 10_000; // milliseconds between two signs of life
const UNANSWERED = 3; // signs of life after which a worker that says nothing is taken for dead

let hub = null;
let unanswered = 0;
let numbers = 0;
const waiting = new Map();

/** The worker that all windows share; nothing in a browser that has no such workers. */
function shared() {
  if (hub || typeof SharedWorker === "undefined") return hub;
  let worker;
  try {
    worker = new SharedWorker(new URL("./shared.js", import.meta.url), { type: "module", name: "tcnn" });
  } catch {
    return null; // not allowed here
  }
  // Its files are asked of the server as well: one that is away by then leaves a worker that never says a word, and of
  // which the browser does not always tell. Whoever starts it again meets the same worker, if it was slow only.
  const dead = () => worker.port === hub && lost();
  const begin = setTimeout(dead, BEGIN);
  worker.onerror = dead;
  hub = worker.port;
  unanswered = 0;
  hub.onmessage = ({ data }) => {
    unanswered = 0;
    clearTimeout(begin);
    waiting.get(data.number)?.(data);
  };
  hub.start();
  return hub;
}

/** Whoever waits for it takes its stream for broken, and the next one starts another worker. */
function lost() {
  hub?.close();
  hub = null;
  for (const say of [...waiting.values()]) say({ outcome: "broken" });
}

setInterval(() => {
  if (!hub || !waiting.size) return;
  if (unanswered === UNANSWERED) return lost();
  unanswered += 1;
  hub.postMessage({ alive: [...waiting.keys()] });
}, ALIVE);
addEventListener("pagehide", () => hub?.postMessage({ close: [...waiting.keys()] }));

/** Have a stream until it ends or `signal` says so; resolves with its `outcome`, as `open` of connection.js does. */
export function take(asked, signal, { opened, message }) {
  const port = shared();
  if (!port) return open(asked, signal, { opened, message });
  return new Promise((resolve, reject) => {
    numbers += 1;
    const number = numbers;
    const leave = () => {
      waiting.delete(number);
      port.postMessage({ close: [number] });
      reject(new DOMException("stopped", "AbortError"));
    };
    if (signal.aborted) return leave();
    signal.addEventListener("abort", leave, { once: true });
    waiting.set(number, (said) => {
      if (said.opened) opened();
      for (const one of said.messages ?? []) message(...one);
      if (!said.outcome) return;
      waiting.delete(number);
      signal.removeEventListener("abort", leave);
      resolve(said);
    });
    port.postMessage({ open: number, asked });
  });
}
