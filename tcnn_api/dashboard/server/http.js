// Asking the server: with the key of this tab, and with its problem+json as errors that know their fields.

import { isProxys } from "./connection.js";
import { parsed } from "./json.js";
import { forPages } from "./wording.js";

const KEY = "tcnn-key";
const SILENCE = 30_000; // milliseconds without an answer, after which it is asked whether the server is there: one that hangs refuses nothing
const NO_DATABASE = "urn:tcnn:problem:store-unavailable";
const NO_LINK = "This link has expired or been revoked.";
const NO_KEY = "This server requires a valid key.";

/** The server said no, and why. */
export class Problem extends Error {
  constructor(status, body) {
    super(status === 401 ? (lent ? NO_LINK : NO_KEY) : forPages(body.detail ?? body.title ?? `The server answered ${status}.`));
    this.status = status;
    this.passes = body.type === NO_DATABASE;
    this.fields = status === 401 ? [] : (Array.isArray(body.errors) ? body.errors : []).map((one) => ({ ...one, message: forPages(one.message) }));
  }
}

/** The server could not be reached. */
export class Away extends Error {
  constructor() {
    super("The server cannot be reached. Nothing you sent is lost: try again in a moment.");
    this.passes = true;
  }
}

const listeners = { standing: new Set(), back: new Set(), key: new Set(), given: new Set(), forgotten: new Set() };
const there = { server: true, database: true };

/** Calls back with `{server, database}`, whether the server answers and whether it says that its database does, as they come and go. */
export function onStanding(call) {
  listeners.standing.add(call);
}

/** Calls back once, as soon as what did not answer does again. */
export function whenBack(call) {
  listeners.back.add(call);
}

/** Calls back when the server wants a key, or another one. */
export function onKeyNeeded(call) {
  listeners.key.add(call);
}

/** Calls back when another window was given a key that is not the one that this window had, with whether this one waited for it. */
export function onKeyGiven(call) {
  listeners.given.add(call);
}

/** Calls back when another window has made all of them forget the key. */
export function onKeyForgotten(call) {
  listeners.forgotten.add(call);
}

function stand(changed) {
  if (Object.entries(changed).every(([of, is]) => there[of] === is)) return;
  Object.assign(there, changed);
  for (const call of listeners.standing) call({ ...there });
  if (!there.server || !there.database) return;
  const waiting = [...listeners.back];
  listeners.back.clear(); // one that fails again waits anew
  for (const call of waiting) call();
}

export const connected = (server) => stand({ server });
export const reached = (database) => stand({ database });

// Windows of one browser tell each other the key, so that it is asked for once; on disk it is never.
const others = new BroadcastChannel("tcnn-key");
const MOMENT = 300; // milliseconds that another window has to answer

let lent = ""; // what a link opens with: for this window and this page alone
let wrong = null; // a key that the server has refused

export const key = {
  get: () => lent || key.own(),
  /** This window's, whatever a link's page looks with. */
  own: () => sessionStorage.getItem(KEY) ?? "",
  /** Look with what a link opens with, in place of a key; with nothing, as before. */
  lend: (secret) => {
    lent = secret;
  },
  isLent: () => Boolean(lent),
  /** Whether the server has refused it: asked again and again, it would take this address for one that guesses. */
  isWrong: () => wrong !== null && key.get() === wrong,
  set: (value) => {
    wrong = null;
    sessionStorage.setItem(KEY, value);
    others.postMessage({ key: value });
  },
  forget: () => {
    sessionStorage.removeItem(KEY);
    others.postMessage({ forget: true });
  },
  /** The key that another window has; nothing if none has any. */
  borrow: () =>
    new Promise((resolve) => {
      const timer = setTimeout(() => (others.removeEventListener("message", heard), resolve("")), MOMENT);
      function heard({ data }) {
        if (!data.key || data.key === wrong) return;
        clearTimeout(timer);
        others.removeEventListener("message", heard);
        resolve(data.key);
      }
      others.addEventListener("message", heard);
      others.postMessage({ ask: true });
    }),
};
others.addEventListener("message", ({ data }) => {
  const own = sessionStorage.getItem(KEY);
  if (data.ask && own && own !== wrong) others.postMessage({ key: own });
  if (data.key && data.key !== wrong) {
    sessionStorage.setItem(KEY, data.key);
    if (data.key !== own) for (const call of listeners.given) call(!own || own === wrong);
  }
  if (data.forget && own !== null) {
    sessionStorage.removeItem(KEY);
    for (const call of listeners.forgotten) call();
  }
});

let looking = null;
const present = () => (looking ??= get("healthz", { within: SILENCE }).finally(() => (looking = null)));

/**
 * Ask now and then whether the server is there at all, for it may have much to compute, until `end`; `lost` is called, once, if
 * it is not. After `wait`, as whenever something has gone, the time begins anew.
 */
function watching(lost) {
  let timer;
  let over = false;
  const look = () => present().then(wait, (error) => (error instanceof Away ? over || lost(error) : wait()));
  function wait() {
    clearTimeout(timer);
    if (!over) timer = setTimeout(look, SILENCE);
  }
  wait();
  return { wait, end: () => ((over = true), clearTimeout(timer)) };
}

/** As `fetch`, but a server that is no longer there cannot be reached, nor one that does not answer `within` so many milliseconds, if any are given. */
async function answered(path, { signal, ...rest }, within) {
  const late = new AbortController();
  const timer = within ? setTimeout(() => late.abort(), within) : 0;
  const watch = within ? null : watching(() => late.abort());
  try {
    const answer = await fetch(path, { ...rest, signal: signal ? AbortSignal.any([signal, late.signal]) : late.signal, cache: "no-store" });
    if (isProxys(answer.status, answer.headers.get("Content-Type"))) throw new TypeError("a proxy answered in the place of the server");
    connected(true);
    return broken(answer);
  } catch (error) {
    if (error.name === "AbortError" && !late.signal.aborted) throw error;
    connected(false);
    throw new Away();
  } finally {
    clearTimeout(timer);
    watch?.end();
  }
}

/** The same answer; where what it holds breaks off on its way, the server cannot be reached. */
function broken(answer) {
  for (const kind of ["text", "blob"]) {
    answer[kind] = () => Response.prototype[kind].call(answer).catch((error) => {
      if (!(error instanceof TypeError)) throw error; // it was stopped, or is no JSON
      connected(false);
      throw new Away();
    });
  }
  answer.json = async () => parsed(await answer.text());
  return answer;
}

/** Whose key this is: `{tenant, scopes}`. It is tried without being kept; throws `Problem` for a wrong one. */
export async function whose(given) {
  const answer = await answered("me", { headers: given ? { Authorization: `Bearer ${given}` } : {} });
  if (answer.ok) return answer.json();
  throw new Problem(answer.status, await answer.json().catch(() => ({})));
}

export function headers(more = {}, own = key.get()) {
  return own ? { ...more, Authorization: `Bearer ${own}` } : more;
}

/** The response, if it is a good one. Throws `Problem`, `Away`, or AbortError when `signal` says so. */
export async function ask(path, { method = "GET", json, body, headers: more = {}, signal, within } = {}) {
  const all = headers(more);
  if (json !== undefined) {
    body = JSON.stringify(json);
    all["Content-Type"] = "application/json";
  }
  const own = key.get();
  if (key.isWrong()) throw refusal(401, {}, own);
  const answer = await answered(path, { method, body, headers: all, signal }, within);
  if (answer.ok) return answer;
  throw refusal(answer.status, await answer.json().catch(() => ({})), own);
}

/** The error of a status and a body, for what was asked with `own`; a missing key is told to whoever can ask for one. */
export function refusal(status, body, own) {
  if (status === 401 && own === key.get()) { // or another one was given meanwhile
    wrong = own || null;
    for (const call of listeners.key) call(Boolean(own));
  }
  if (body.type === NO_DATABASE) reached(false);
  return new Problem(status, body);
}

export async function get(path, options) {
  return (await ask(path, options)).json();
}

export async function post(path, json, options = {}) {
  return (await ask(path, { method: "POST", json, ...options })).json();
}

/** A key for a request that may be sent twice. `crypto.randomUUID` is for secure pages only; this is not. */
export function once() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Send a file with the key `own` as the part `file` of a form, telling how much has gone: fetch cannot tell. While nothing goes the
 * server may look at the file: `Away` is thrown if it is no longer there.
 */
export function upload(path, file, { progress, idempotency, signal, own }) {
  if (wrong !== null && own === wrong) return Promise.reject(refusal(401, {}, own));
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries(headers({ "Idempotency-Key": idempotency }, own))) {
      request.setRequestHeader(name, value);
    }
    const watch = watching((error) => (reject(error), request.abort()));
    request.onloadend = watch.end;
    request.upload.onprogress = (event) => {
      watch.wait();
      if (event.lengthComputable) progress(event.loaded / event.total);
    };
    request.onerror = async () => {
      const there = await file.slice(0, 1).arrayBuffer().then((begun) => begun.byteLength > 0, () => false); // one that is gone has no length, and no error
      if (!there) return reject(new Error("The file is no longer there; choose it again."));
      connected(false);
      reject(new Away());
    };
    request.onabort = () => reject(new DOMException("stopped", "AbortError"));
    request.onload = () => {
      if (isProxys(request.status, request.getResponseHeader("Content-Type"))) {
        connected(false);
        return reject(new Away());
      }
      connected(true);
      let said = {};
      try {
        said = parsed(request.responseText);
      } catch {
        // not ours: a proxy's page, perhaps; the status has to do
      }
      if (request.status < 300) resolve(said);
      else reject(refusal(request.status, said, own));
    };
    signal?.addEventListener("abort", () => request.abort());
    const form = new FormData();
    form.append("file", file, file.name);
    request.send(form);
  });
}

/** Save what only the key opens: a plain link cannot carry it. The server's name for it, if it says one, is as good as then. */
export async function save(path, name) {
  const answer = await ask(path);
  const named = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition") ?? "");
  const content = await answer.blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = named?.[1] ?? name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
