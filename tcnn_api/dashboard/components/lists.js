// Selects that the server fills (<select> with options that are fetched): what is meant stays chosen while its list cannot be had.

import { h } from "../dom.js";
import { whenBack } from "../server/http.js";

/**
 * Options from the server; says so when there are none, or when they cannot be had, and then fills it as soon as a server that
 * was away is back, of which it tells by a change. What is chosen by then, or `wanted`, is chosen, also if it is older than
 * those that the server lists: in its place another one would be, and nobody would notice.
 */
export async function fill(control, fetched, none, wanted) {
  try {
    const options = await fetched();
    const meant = chosen(control);
    const real = options.filter(([value]) => value !== "other");
    control.replaceChildren(
      ...(real.length ? [] : [h("option", { value: "" }, none)]),
      ...options.map(([value, word]) => h("option", { value }, word)));
    mean(control, meant.length || !wanted ? meant : [wanted]);
  } catch (error) {
    if (error.name === "AbortError") return;
    const meant = chosen(control);
    control.replaceChildren(h("option", { value: "" }, error.passes ? "The list cannot be had while the server is away." : error.message));
    mean(control, meant.length || !wanted ? meant : [wanted]);
    if (error.passes) whenBack(() => control.isConnected && fill(control, fetched, none, wanted).then(() => control.dispatchEvent(new Event("change", { bubbles: true }))));
  }
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
