// What happened to a job, newest first: as a stream tells it, or asked for where there is none.

import { h } from "../dom.js";
import { date, moment, number, percent, some } from "../components/format.js";
import { card } from "../components/parts.js";
import { get } from "../server/http.js";
import { forPages } from "../server/wording.js";

const PAGE = 1000;

/** `created()` is when the job was; `taken(starts)` hears of each start by a worker: the attempt, and when. */
export function eventsOf(id, { created, taken }) {
  const list = h("ol", { class: "events", tabindex: "0", "aria-label": "Events, newest first" });
  let last = 0;
  let starts = [];
  let turn = 0;

  /** Begin anew: all of them come once more. */
  function clear() {
    turn += 1;
    last = 0;
    starts = [];
    list.replaceChildren();
  }

  /** One that is known already is none: a stream that opens after all begins with the first. */
  function add(one) {
    if (one.seq <= last) return;
    last = one.seq;
    const when = moment(one.at, created());
    list.prepend(h("li", {}, h("time", { datetime: one.at, title: date(one.at) }, when), h("span", {}, told(one))));
    if (one.kind !== "started") return;
    starts.push([one.data.attempt, when]);
    taken(starts);
  }

  /** Give `heard(event)` all that happened since the last one. */
  async function ask(heard) {
    const own = turn;
    for (let more = true; more;) {
      const page = await get(`jobs/${id}/events?${new URLSearchParams({ after: last, limit: PAGE })}`);
      if (own !== turn) return;
      page.data.forEach(heard);
      more = page.has_more;
    }
  }

  return { element: card("Events", list), clear, add, ask };
}

function told({ kind, data }) {
  const { message: said, ...rest } = data;
  const message = said && forPages(said);
  switch (kind) {
    case "queued": return "Queued";
    case "resumed": return "Resumed and queued again";
    case "started": return `Attempt ${data.attempt} started`;
    case "phase": return data.phase.charAt(0).toUpperCase() + data.phase.slice(1);
    case "converted": return `Converted ${some(data.layers, "layer")}${data.verified ? ", verified" : ""}`;
    case "epoch": return `Epoch ${data.epoch + 1}: loss ${number(data.train_loss)}, accuracy ${percent(data.val?.top1)}`;
    case "message": return forPages(data.text);
    case "retrying": return `Failed, will be retried: ${message}`;
    case "stalled": return "The worker stopped responding; another one takes over";
    case "handed_back": return "The worker left; another one takes over";
    case "handed_on": return "Another worker has enough free slots and takes over";
    case "cancel_requested": return "Cancellation requested";
    case "failed": return `Failed: ${message}`;
    default: return [kind.charAt(0).toUpperCase() + kind.slice(1), Object.keys(rest).length ? JSON.stringify(rest) : ""].join(" ").trim();
  }
}
