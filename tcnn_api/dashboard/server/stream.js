// A stream of the server's that is followed for as long as it takes: one that breaks is taken up where it broke.

import { connected, headers, key, reached, refusal } from "./http.js";
import { take } from "./sharing.js";

const LONGEST_PAUSE = 8_000;
const STANDING = { away: false, back: true }; // whether the server's database answers

/** Calls back whenever the window is looked at again; returns the function that ends it. */
export function onReturn(call) {
  const returned = () => document.hidden || call();
  document.addEventListener("visibilitychange", returned);
  return () => document.removeEventListener("visibilitychange", returned);
}

/**
 * Follow a stream until it is stopped; returns the function that stops it.
 *
 * message(event, data, id) is called for every message; ended() when the server ended the stream, and says whether to
 * come back; poll() stands in where there is no stream to be had (too many, or a proxy that swallows them).
 * refused(problem) is called for an answer that will not change, and ends it; failed(problem) for one that may, and it is
 * tried again.
 */
export function follow(path, { message, ended = () => true, poll, refused, failed, every = 3000 }) {
  const stopping = new AbortController();
  let last = "";

  async function once() {
    const own = key.get();
    if (key.isWrong()) return refusal(401, {}, own);
    const leaving = new AbortController();
    const stop = () => leaving.abort();
    stopping.signal.addEventListener("abort", stop);
    document.addEventListener("visibilitychange", stop); // a window that nobody sees keeps no connection
    try {
      const asked = { url: new URL(path, document.baseURI).href, headers: headers({ Accept: "text/event-stream" }), last };
      const { outcome, status, body } = await take(asked, leaving.signal, {
        opened: () => connected(true),
        message: (event, data, id) => {
          if (id) last = id;
          if (event in STANDING) return reached(STANDING[event]);
          message(event, data, id);
        },
      });
      return outcome === "refused" ? refusal(status, body, own) : outcome;
    } finally {
      stopping.signal.removeEventListener("abort", stop);
      document.removeEventListener("visibilitychange", stop);
    }
  }

  async function run() {
    let pause = 500;
    while (!stopping.signal.aborted) {
      await visible();
      if (stopping.signal.aborted) return;
      const began = Date.now();
      let outcome;
      try {
        outcome = await once();
      } catch {
        outcome = "broken";
      }
      if (stopping.signal.aborted) return;
      if (outcome === "ended" && !ended()) return;
      if (outcome instanceof Error && outcome.status < 500 && outcome.status !== 429) {
        refused?.(outcome);
        return;
      }
      if (outcome instanceof Error && outcome.status >= 500) failed?.(outcome);
      if (outcome === "broken" && !document.hidden) connected(false);
      if (outcome === "no stream" || outcome.status === 429) {
        if ((await poll().catch(() => true)) === false) return;
        await wait(every);
        continue;
      }
      pause = Date.now() - began > 10_000 ? 500 : Math.min(2 * pause, LONGEST_PAUSE);
      await wait(document.hidden ? 0 : pause);
    }
  }

  function wait(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      stopping.signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
    });
  }

  function visible() {
    return new Promise((resolve) => {
      if (!document.hidden) return resolve();
      document.addEventListener("visibilitychange", resolve, { once: true, signal: stopping.signal });
      stopping.signal.addEventListener("abort", resolve, { once: true });
    });
  }

  run();
  return () => stopping.abort();
}
