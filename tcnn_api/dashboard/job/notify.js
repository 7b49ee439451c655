// The browser tells when a job ends: asked for by a button, and only then.

import { announce, h, say } from "../dom.js";
import { ENDED, STATUS, failure, title } from "../components/format.js";
import { get, key } from "../server/http.js";

const EVERY = 10_000; // milliseconds: a window that nobody sees has no stream, so it asks
const waiting = new Map(); // jobs that are waited for, by id, whatever page is shown

function begin(id) {
  const look = async () => {
    if (key.isWrong()) return; // until there is another
    try {
      const job = await get(`jobs/${id}`);
      if (!ENDED.has(job.status) || !waiting.has(id)) return;
      end(id);
      tell(job);
    } catch (error) {
      if (error.status === 404) end(id); // else later, perhaps
    }
  };
  waiting.set(id, setInterval(look, EVERY));
}

function end(id) {
  clearInterval(waiting.get(id));
  waiting.delete(id);
}

function tell(job) {
  show(`${STATUS[job.status].word}: ${title(job)}`, { body: failure(job), tag: job.id }, job.id);
}

/** Shows a notification, if the browser shows those of a page: on a phone it may offer them, and throw when one is made. */
function show(words, options, id) {
  try {
    const note = new Notification(words, { icon: "static/dashboard/icon.svg", ...options });
    note.onclick = () => {
      window.focus();
      location.hash = `#/jobs/${id}`;
      note.close();
    };
    return true;
  } catch {
    return false;
  }
}

/** A button for a job that has not ended; `heard(job)` when its page learns how it stands. */
export function notifier(id) {
  if (!("Notification" in window)) return { element: null, heard: () => {} };
  const element = h("button", { type: "button", "aria-pressed": "false", onclick: ask }, "Notify me");

  function draw() {
    element.setAttribute("aria-pressed", String(waiting.has(id)));
    say(element, waiting.has(id) ? "Will notify" : "Notify me");
    element.title = waiting.has(id) ? "Your browser will notify you when the job ends, as long as this window is open. Click to turn this off."
      : "Get a browser notification when the job ends";
  }

  async function ask() {
    if (waiting.has(id)) end(id);
    else {
      const given = await Notification.requestPermission();
      if (given === "denied") return refused("Blocked", "Notifications from this page are blocked; you can allow them in the browser’s settings.");
      if (given === "granted") {
        if (!show("You will be notified when the job ends", { body: "As long as a window of the dashboard is open." }, id)) {
          return refused("Not supported", "This browser shows no notifications from web pages.");
        }
        begin(id);
        announce("The browser will notify you when the job ends.");
      }
    }
    draw();
  }

  function refused(word, why) {
    announce(why);
    say(element, word);
    element.title = why;
  }

  draw();
  return {
    element,
    heard(job) {
      if (!ENDED.has(job.status)) return;
      if (waiting.has(id)) {
        end(id);
        tell(job);
      }
    },
  };
}
