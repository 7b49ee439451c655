// Selects that the server fills (<select> with options that are fetched): what is meant stays chosen while its list cannot be had.

import { h, say } from "../dom.js";
import { busy } from "./parts.js";
import { whenBack } from "../server/http.js";

const refusals = new WeakMap(); // of each list the line that says why it could not be had

/**
 * Options from the server, each as its value, its words and whether nobody can choose it; says so when there are none, or when they cannot be had, and then fills it as soon as a server that
 * was away is back, or somebody tries again what it refused for now, of which it tells by a change. What is chosen by then, or
 * `wanted`, is chosen, also if it is older than those that the server lists: in its place another one would be, and nobody would notice.
 */
export async function fill(control, fetched, none, wanted) {
  const [options, error] = await fetched().then((found) => [found, null], (refused) => [[], refused]);
  if (error?.name === "AbortError") return;
  const meant = chosen(control);
  const real = options.filter(([value, , closed]) => value !== "other" && !closed);
  const words = !error ? none : error.passes ? "The list cannot be loaded while the server is unreachable." : "The list cannot be loaded now.";
  control.replaceChildren(
    ...(real.length ? [] : [h("option", { value: "" }, words)]),
    ...options.map(([value, word, closed]) => h("option", { value, disabled: closed }, word)));
  mean(control, meant.length || !wanted ? meant : [wanted]);
  const again = () => fill(control, fetched, none, wanted).then(() => control.dispatchEvent(new Event("change", { bubbles: true })));
  if (error?.passes) whenBack(() => control.isConnected && again());
  if (error && !error.passes) refuse(control, error.message, again);
  else refusals.get(control)?.remove();
}

/** Say below a list why it could not be had, with a way to try again, by which the focus goes on to the list. */
function refuse(control, message, again) {
  const before = refusals.get(control);
  const button = before?.querySelector("button") ?? h("button", { type: "button" }, "Try again");
  const notice = before ?? h("div", { class: "missing", role: "alert" }, h("p", { class: "error" }), button);
  button.onclick = () => busy(button, again).then(() => notice.isConnected || document.activeElement !== document.body || control.focus());
  refusals.set(control, notice);
  if (!notice.isConnected) control.after(notice);
  say(notice.querySelector("p"), `The list could not be loaded: ${message}`);
}

/** What `ask` answers, asked for once by all that want it at a time; afterwards anew, for it may have failed. */
export function common(ask) {
  let asked = null;
  return () => (asked ??= ask().finally(() => (asked = null)));
}

/** Choose what is meant, even if it is not on the list, or not yet. */
export function choose(control, value) {
  mean(control, [value]);
}

/** The same of a list of which several may be chosen. */
export function mean(control, values) {
  const listed = (value) => [...control.options].some((option) => option.value === value);
  control.prepend(...values.filter((value) => value && !listed(value)).map((value) => h("option", { value }, value)));
  if (control.multiple) for (const option of control.options) option.selected = values.includes(option.value);
  else if (values.length && listed(values[0])) [control.value] = values;
}

function chosen(control) {
  return [...control.selectedOptions].map((option) => option.value).filter(Boolean);
}
