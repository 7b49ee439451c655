// A card of things to copy, each with a button; the clipboard's own way needs a secure page, so there is an older one, too.

import { announce, h, say } from "../dom.js";
import { asCommand, asCurl, asPython } from "./commands.js";
import { key } from "../server/http.js";

const MOMENT = 2000; // milliseconds for which a button says that it has copied

/** The job as a request of curl, as Python, as a command; drawn when it is opened. */
export function copies(current) {
  const place = h("div");
  const element = h("details", { class: "card", ontoggle: () => element.open && draw() }, h("summary", {}, "Run it from elsewhere"), place);

  function draw() {
    const where = { server: new URL(".", location.href).href.replace(/\/$/, ""), keyed: Boolean(key.get()) };
    place.replaceChildren(
      ...[["tcnn", asCommand], ["curl", asCurl], ["Python", asPython]].map(([name, made]) => snippet(name, made(current(), where))),
      where.keyed ? h("p", { class: "hint" }, "The key is read from the environment variable TCNN_API_KEY.") : "");
  }

  return element;
}

function snippet(name, text) {
  const code = h("pre", { class: "log snippet", tabindex: "0", role: "region", "aria-label": name }, text);
  const button = h("button", { type: "button", "aria-label": `Copy for ${name}`, onclick: async () => {
    const done = await copy(text, code);
    announce(done ? "Copied." : "Copying is not possible here; the text is selected.");
    say(button, done ? "Copied" : "Selected");
    setTimeout(() => say(button, "Copy"), MOMENT);
  } }, "Copy");
  return h("section", { class: "copyable" }, h("h3", {}, name), button, code);
}

/** Put a text into the clipboard; where nothing may, it is selected. Returns whether it was copied. */
export async function copy(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const range = document.createRange();
    range.selectNodeContents(element);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    return document.execCommand("copy");
  }
}
