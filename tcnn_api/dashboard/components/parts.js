// Small pieces that several pages show.

import { h, say } from "../dom.js";
import { STATUS } from "./format.js";
import { whenBack } from "../server/http.js";

const NEWS = 4_000; // milliseconds: as long as the page says that it is connected again

/** A job's status: a word and a sign, so that it is not told by colour alone. */
export function badge(status) {
  const element = h("span", { class: "badge" });
  setBadge(element, status);
  return element;
}

export function setBadge(element, status) {
  const { word, icon } = STATUS[status] ?? { word: status, icon: "?" };
  if (element.dataset.status === status) return;
  element.dataset.status = status;
  element.replaceChildren(h("span", { "aria-hidden": "true" }, icon), ` ${word}`);
}

/** A bar that knows when nothing can be said yet. */
export function bar(label) {
  const element = h("progress", { max: "100", "aria-label": label });
  return element;
}

export function setBar(element, percent) {
  if (percent === null || percent === undefined) element.removeAttribute("value");
  else element.value = Math.max(0, Math.min(100, percent));
}

/**
 * What went wrong, an error or words for it, with a way to try again; it is tried by itself when a server that was away is back.
 * `again` resolves when something else stands in the notice's place, to which a focus that was in it goes on.
 */
export function trouble(said, again) {
  const notice = h(
    "div", { class: "notice bad", role: "alert" },
    h("p", {}, said.message ?? said),
    again && h("button", { type: "button", onclick: repeat }, "Try again"),
  );

  async function repeat(pressed) {
    const place = notice.parentElement;
    const focused = notice.contains(document.activeElement);
    await again(pressed);
    if (!focused || document.activeElement !== document.body || !place.isConnected) return;
    place.setAttribute("tabindex", "-1");
    (place.querySelector(":scope > [role=alert] button") ?? place).focus({ preventScroll: true });
  }

  if (again && said.passes) whenBack(() => notice.isConnected && repeat());
  return notice;
}

/** A page of a list that begins after something that was deleted since has no other way on than the list's beginning. */
export function beganAfterNothing(newest) {
  return h("div", { class: "empty" },
    h("p", {}, "The entry that this page starts after has been deleted."), h("p", {}, h("a", { class: "button", href: newest }, "Newest")));
}

/** Say in a place why something was not done; that the server or its database was away only until it answers again. */
export function refused(place, error) {
  const notice = trouble(error.message);
  place.replaceChildren(notice);
  if (error.passes) untilBack(() => notice.remove());
}

/** Do away with what was said because the server or its database was away, a moment after it answers again. */
export function untilBack(call) {
  whenBack(() => setTimeout(call, NEWS));
}

/** Disable a control while something is done, and give it back the focus that it loses by that. */
export async function busy(control, work) {
  const focused = document.activeElement === control;
  control.disabled = true;
  try {
    await work();
  } finally {
    control.disabled = false;
    if (focused && document.activeElement === document.body) control.focus();
  }
}

/** Ask before what cannot be undone. */
export function sure({ title, text, no = "Keep it", yes = "Delete it" }) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "sure-title" },
      h("form", { method: "dialog" },
        h("h2", { id: "sure-title" }, title),
        h("p", {}, text),
        h("div", { class: "actions" },
          h("button", { type: "submit", value: "", autofocus: true }, no),
          h("button", { type: "submit", value: "yes", class: "danger" }, yes))));
    dialog.addEventListener("close", () => (resolve(dialog.returnValue === "yes"), dialog.remove()));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A file that a key may guard: a link where there is none, and what saves it where there is one. */
export function fileLink(path, name, { saving, keyed, word = name }) {
  const link = h("a", { href: path, download: name }, word);
  if (!keyed) return link;
  let fetching = false;
  link.addEventListener("click", async (event) => {
    event.preventDefault();
    if (fetching) return;
    fetching = true;
    say(link, `${word} (fetching…)`);
    try {
      await saving(path, name);
      say(link, word);
    } catch (error) {
      say(link, `${word} (${error.message})`);
      if (error.passes) untilBack(() => fetching || say(link, word));
    } finally {
      fetching = false;
    }
  });
  return link;
}

/** A part of a page under a heading. */
export function card(name, ...children) {
  return h("section", { class: "card" }, h("h2", {}, name), children);
}

/** Names and values for a list of facts; a value that is not known has no line. */
export function pairs(entries) {
  return entries.filter(([, value]) => value !== null && value !== undefined).map(([word, value]) => h("div", {}, h("dt", {}, word), h("dd", {}, value)));
}
