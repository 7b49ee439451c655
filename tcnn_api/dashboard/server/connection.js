// One stream over fetch, since EventSource cannot send a key. No window is needed for it.

import { parser } from "./sse.js";

const SILENCE = 40_000; // the server says something every fifteen seconds

/** Whether an answer is that of a proxy before a server that is away: the server's own have a JSON object. */
export function isProxys(status, type) {
  return [502, 503, 504].includes(status) && !/json/i.test(type ?? "");
}

/**
 * Read a stream to its end. Resolves with {outcome}: "ended", "no stream" where something else came, "broken" where the
 * connection was lost, or "refused" with the status and the body that said so.
 */
export async function open({ url, headers, last }, signal, { opened, message }) {
  const silence = new AbortController();
  let watchdog = setTimeout(() => silence.abort(), SILENCE);
  const stop = () => silence.abort();
  signal.addEventListener("abort", stop);
  try {
    const answer = await fetch(url, {
      headers: { ...headers, ...(last ? { "Last-Event-ID": last } : {}) }, signal: silence.signal, cache: "no-store",
    });
    if (answer.status === 204) return { outcome: "ended" };
    if (isProxys(answer.status, answer.headers.get("content-type"))) return { outcome: "broken" };
    if (!answer.ok) return { outcome: "refused", status: answer.status, body: await answer.json().catch(() => ({})) };
    if (!answer.headers.get("content-type")?.startsWith("text/event-stream")) return { outcome: "no stream" };
    opened();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const read = parser(message);
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return { outcome: "ended" };
      clearTimeout(watchdog);
      watchdog = setTimeout(() => silence.abort(), SILENCE);
      read(value);
    }
  } catch {
    return { outcome: "broken" };
  } finally {
    clearTimeout(watchdog);
    signal.removeEventListener("abort", stop);
  }
}
