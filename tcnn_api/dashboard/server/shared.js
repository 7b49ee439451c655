// The worker that all windows of a browser share. Those that look at the same thing have one stream; of different
// things there are at most MOST, and other windows ask from time to time instead: some connections must stay free.

import { open } from "./connection.js";

const MOST = 2;
const GONE = 35_000; // milliseconds without a sign of life after which a window is taken for closed

const streams = new Map();

class Stream {
  constructor(key, asked) {
    this.key = key;
    this.seats = new Map();
    this.stopping = new AbortController();
    this.isOpen = false;
    this.events = []; // what happened, for windows that come later
    this.progress = null;
    this.jobs = null;
    this.away = null; // that its database does not answer
    open({ ...asked, last: "" }, this.stopping.signal, {
      opened: () => this.tell({ opened: (this.isOpen = true) }),
      message: (event, data, id) => {
        this.remember(event, data, id);
        this.tell({ messages: [[event, data, id]] });
      },
    }).then((end) => {
      this.forget();
      this.tell(end);
      this.seats.clear();
    });
  }

  remember(event, data, id) {
    if (event === "jobs") {
      const known = new Map([...(this.jobs?.changed ?? []), ...data.changed].map((job) => [job.id, job]));
      this.jobs = { ...data, changed: data.order.map((one) => known.get(one)) };
    } else if (event === "away" || event === "back") this.away = event === "away" ? [event, data, id] : null;
    else if (id) this.events.push([event, data, id]);
    else this.progress = [event, data, id];
  }

  /** What a window that has seen everything up to `last` does not know yet. */
  since(last) {
    const unseen = this.events.filter(([, , id]) => Number(id) > Number(last || 0));
    return [...(this.jobs ? [["jobs", this.jobs, ""]] : []), ...unseen, ...[this.progress, this.away].filter(Boolean)];
  }

  tell(said) {
    for (const { port, number, last } of this.seats.values()) {
      const messages = said.messages?.filter(([, , id]) => !id || Number(id) > Number(last || 0));
      if (!said.messages || messages.length) port.postMessage({ ...said, messages, number });
    }
  }

  leave(seat) {
    if (!this.seats.delete(seat) || this.seats.size) return;
    this.forget();
    this.stopping.abort();
  }

  /** By then another stream may stand under the same key. */
  forget() {
    if (streams.get(this.key) === this) streams.delete(this.key);
  }
}

const ports = new Map();

addEventListener("connect", ({ ports: [port] }) => {
  const seats = new Map();
  ports.set(port, seats);
  port.onmessage = ({ data }) => {
    if (data.open) seat(port, seats, data.open, data.asked);
    if (data.alive) port.postMessage({ alive: true });
    for (const number of data.alive ?? []) if (seats.has(number)) seats.get(number).heard = Date.now();
    for (const number of data.close ?? []) rise(seats, number);
  };
  port.start();
  port.postMessage({ alive: true });
});

function seat(port, seats, number, asked) {
  const key = JSON.stringify([asked.url, asked.headers]);
  const known = streams.get(key);
  if (!known && streams.size >= MOST) {
    port.postMessage({ number, outcome: "no stream" });
    return;
  }
  const stream = known ?? new Stream(key, asked);
  streams.set(key, stream);
  const one = { port, number, last: asked.last, heard: Date.now(), stream };
  seats.set(number, one);
  stream.seats.set(one, one);
  if (known) port.postMessage({ number, opened: stream.isOpen, messages: stream.since(asked.last) });
}

function rise(seats, number) {
  const one = seats.get(number);
  if (!one) return;
  seats.delete(number);
  one.stream.leave(one);
}

setInterval(() => {
  for (const seats of ports.values()) {
    for (const [number, one] of seats) if (Date.now() - one.heard > GONE) rise(seats, number);
  }
}, GONE / 2);
