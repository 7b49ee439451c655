// Server-Sent Events over fetch, since EventSource cannot send a key. A stream that breaks is taken up where it broke.

import { connected, headers, problem } from "./http.js";

const SILENCE = 40_000; // the server says something every fifteen seconds
const LONGEST_PAUSE = 8_000;

/**
 * Follow a stream until it is stopped; returns the function that stops it.
 *
 * message(event, data, id) is called for every message; ended() when the server ended the stream, and says whether to
 * come back; poll() stands in where there is no stream to be had (too many, or a proxy that swallows them).
 * refused(problem) is called for an answer that will not change, and ends it.
 */
export function follow(path, { message, ended = () => true, poll, refused, every = 3000 }) {
  const stopping = new AbortController();
  let last = "";

  async function once() {
    const silence = new AbortController();
    let watchdog = setTimeout(() => silence.abort(), SILENCE);
    const stop = () => silence.abort();
    stopping.signal.addEventListener("abort", stop);
    document.addEventListener("visibilitychange", stop); // a tab that nobody sees keeps no connection
    try {
      const answer = await fetch(path, {
        headers: headers({ Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) }),
        signal: silence.signal,
        cache: "no-store",
      });
      if (answer.status === 204) return "ended";
      if (!answer.ok) return await problem(answer);
      if (!answer.headers.get("content-type")?.startsWith("text/event-stream")) return "no stream";
      connected(true);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const read = parser((event, data, id) => {
        if (id) last = id;
        message(event, data, id);
      });
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return "ended";
        clearTimeout(watchdog);
        watchdog = setTimeout(() => silence.abort(), SILENCE);
        read(value);
      }
    } finally {
      clearTimeout(watchdog);
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
      if (outcome === "broken" && !document.hidden) connected(false);
      if (outcome === "no stream" || outcome.status === 429) {
        await poll().catch(() => {});
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
      document.addEventListener("visibilitychange", resolve, { once: true });
      stopping.signal.addEventListener("abort", resolve, { once: true });
    });
  }

  run();
  return () => stopping.abort();
}

/** Feed it text as it comes; it calls back with whole messages. The server ends its lines with \n. */
function parser(message) {
  let rest = "";
  return (text) => {
    rest += text;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const fields = { event: "message", data: "", id: "" };
      for (const line of rest.slice(0, end).split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
      }
      rest = rest.slice(end + 2);
      if (fields.data) message(fields.event, JSON.parse(fields.data), fields.id);
    }
  };
}
