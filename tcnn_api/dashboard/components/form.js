// Form fields that know what the server calls them, so that its errors are shown beside them.

import { fresh, h, say } from "../dom.js";
import { mean } from "./lists.js";
import { busy, untilBack } from "./parts.js";
import { notAllowed } from "./tenants.js";
import { Away, Problem, once, post } from "../server/http.js";
import { parsed } from "../server/json.js";
import { isAmbiguous, numberIn, numbersIn } from "./written.js";

/** A labelled control. `name` is the server's dotted name of the field. */
export function field(name, label, control, { hint, wide, half, extra } = {}) {
  const id = control.id || fresh("field");
  control.id = id;
  control.dataset.field = name;
  const error = h("p", { class: "error", id: `${id}-error` });
  const help = hint && h("p", { class: "hint", id: `${id}-hint` }, hint);
  control.setAttribute("aria-describedby", [help && `${id}-hint`, `${id}-error`].filter(Boolean).join(" "));
  const tick = control.type === "checkbox";
  const words = h("label", { for: id }, label);
  return h("div", { class: `field${wide ? " wide" : half ? " half" : ""}${tick ? " tick" : ""}` }, tick ? [control, words] : [words, control], extra, help, error);
}

export function text(attributes = {}) {
  return h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes });
}

/** A number, written as people like: the server says what it makes of it. */
export function numeric(attributes = {}) {
  return text({ inputmode: "decimal", class: "number", ...attributes });
}

/** One that is whole, or of which nobody means thousandths: no separators of thousands are taken for its fraction. */
export function whole(attributes = {}) {
  return numeric({ class: "number whole", ...attributes });
}

export function select(options, attributes = {}) {
  return h("select", attributes, options.map(([value, word]) => h("option", { value }, word)));
}

export function tick(checked, attributes = {}) {
  return h("input", { type: "checkbox", checked, ...attributes });
}

export function clear(form) {
  for (const control of form.querySelectorAll("[data-field]")) wrong(control, "");
}

/** What is wrong in several places at once; each one says with which control. */
export class Mistakes extends Error {
  constructor(found) {
    super(found[0].message);
    this.found = found;
  }
}

/** Do all of these; what is wrong in any of them is told together. */
export function together(...parts) {
  const wrongs = [];
  const made = parts.map((part) => {
    try {
      return part();
    } catch (error) {
      if (error instanceof Mistakes) wrongs.push(...error.found);
      else if (error.control) wrongs.push(error);
      else throw error;
      return {};
    }
  });
  if (wrongs.length) throw new Mistakes(wrongs);
  return made;
}

/** Everything that was written into a form, to be kept with its place in the browser's history. */
export function written(form) {
  return kept(form).map(said);
}

/** Write it again, but for the controls that were touched since; what depends on a control hears of it. */
export function rewrite(form, values, touched = new Set()) {
  const controls = kept(form);
  if (controls.length !== values?.length) return;
  const chosen = new Set([...touched].filter((control) => control.type === "radio").map((control) => control.name));
  controls.forEach((control, place) => {
    const value = values[place];
    if (touched.has(control) || control.type === "radio" && chosen.has(control.name) || same(said(control), value)) return;
    if (typeof value === "boolean") control.checked = value;
    else if (control.options) mean(control, [value].flat()); // its list may be still to come
    else control.value = value;
    if (same(said(control), value) && value !== false || control.type === "checkbox") control.dispatchEvent(new Event("change"));
  });
}

/** What a control says: whether it is ticked, what was written, or all that was chosen. */
function said(control) {
  if (["checkbox", "radio"].includes(control.type)) return control.checked;
  return control.multiple ? [...control.selectedOptions].map((option) => option.value) : control.value;
}

function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

function kept(form) {
  return [...form.elements].filter((control) => control.matches("input:not([type=file]), select, textarea"));
}

/** Say what is wrong with one control. */
export function wrong(control, message) {
  const error = document.getElementById(`${control.id}-error`);
  if (!error) return;
  say(error, message);
  if (message) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
}

/** Put the server's errors beside their fields; returns those that have none here. The first one gets the focus. */
export function showErrors(form, errors) {
  const rest = [];
  let first = null;
  for (const { field: name, message } of errors) {
    const control = owner(form, name);
    if (!control) {
      rest.push(`${name}: ${message}`);
      continue;
    }
    const own = control.dataset.field === name;
    wrong(control, own ? message : `${name.slice(control.dataset.field.length + 1) || name}: ${message}`);
    reveal(control);
    first ??= control;
  }
  first?.focus();
  return rest;
}

/** Open what it is folded in. */
function reveal(control) {
  for (let around = control.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
}

/** The control of a field, or of the nearest one around it: `config.weight_decay` belongs to `config`. */
function owner(form, name) {
  for (let at = name; at; at = at.includes(".") ? at.slice(0, at.lastIndexOf(".")) : "") {
    for (const control of form.querySelectorAll("[data-field]")) {
      if (control.dataset.field === at && !control.disabled && !control.closest("[hidden]")) return control;
    }
  }
  return null;
}

/** What a control says: numbers where they are, and as they are; null where nothing was written. Throws an error with the control. */
export function read(control) {
  if (control.disabled || control.closest("[hidden]")) return null;
  if (control.type === "checkbox") return control.checked;
  const said = control.value.trim();
  if (!said) return null;
  return control.classList.contains("number") ? meantBy(control, said) : said;
}

/** The numbers of a control that lists several. */
export function readAll(control) {
  return blaming(control, () => numbersIn(control.value, { whole: control.classList.contains("whole") }));
}

function meantBy(control, said) {
  return blaming(control, () => numberIn(said, { whole: control.classList.contains("whole") }));
}

/** Do this; what is wrong in it is wrong with the control. */
export function blaming(control, part) {
  try {
    return part();
  } catch (error) {
    throw Object.assign(error, { control });
  }
}

/**
 * Lines of KEY=VALUE as nested settings, whatever their names; throws an error that names the line, also of a setting that is there
 * already, by itself or within another.
 */
export function settings(written) {
  const found = Object.create(null); // or `__proto__` would be a name that all objects share
  for (const line of written.split("\n").map((one) => one.trim()).filter(Boolean)) {
    const equals = line.indexOf("=");
    if (equals < 1) throw new Error(`“${line}”: expected one NAME=VALUE per line`);
    const names = line.slice(0, equals).trim().split(".");
    add(found, names.reduceRight((value, name) => ({ [name]: value }), meant(line.slice(equals + 1).trim(), line)), line);
  }
  return found;
}

function add(into, nested, line, around = "") {
  for (const [name, value] of Object.entries(nested)) {
    const there = Object.hasOwn(into, name);
    if (!there && !isNested(value)) into[name] = value;
    else if (!there || isNested(value) && isNested(into[name])) add(into[name] ??= Object.create(null), value, line, `${around}${name}.`);
    else throw new Error(`${line}: ${around}${name} has a value already, ${JSON.stringify(into[name])}; give one of the two`);
  }
}

function isNested(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** Put what fields of their own say into settings that were written; throws an error where those say something else. */
export function over(settings, own) {
  const pair = (value) => (Array.isArray(value) ? value : [value, value]); // a square may be given by its side
  for (const [name, value] of Object.entries(own)) {
    if (Object.hasOwn(settings, name) && !same(pair(settings[name]), pair(value))) {
      throw new Error(`${name}=${JSON.stringify(settings[name])}: the field above says ${JSON.stringify(value)}; give one of the two`);
    }
    settings[name] = value;
  }
}

function meant(word, line) {
  const words = { None: null, True: true, False: false };
  if (Object.hasOwn(words, word)) return words[word];
  if (isAmbiguous(word)) throw new Error(`${line}: expected a number without separators, as ${Number(word)} or ${word.replace(".", "")}`);
  try {
    return parsed(word);
  } catch {
    return word;
  }
}

/** Put what controls say into a request, by their names; what is wrong in any of them is told together. */
export function putAll(body, controls) {
  together(...Object.entries(controls).map(([name, control]) => () => put(body, name, read(control))));
}

/** Put a value into a request, if anything was said. */
export function put(body, name, value) {
  if (value !== null && value !== "") body[name] = value;
}

/**
 * Keep what is written with its place in the browser's history: whoever goes back finds it again. `more()` is kept beside it, and
 * `changed()` hears of every change. `before` says whether there is anything to restore.
 */
export function keeping(form, { more = () => ({}), changed = () => {} } = {}) {
  const touched = new Set();
  const before = history.state?.written;
  const keep = () => history.replaceState({ ...history.state, written: written(form), ...more() }, "");
  for (const event of ["input", "change"]) {
    form.addEventListener(event, ({ target, isTrusted }) => {
      if (target.dataset.field) wrong(target, ""); // what it said was about what was written before
      changed();
      if (!isTrusted) return;
      touched.add(target);
      keep();
    });
  }

  /** At once, and again when the lists are there, but for what was touched since. */
  async function restore(ready) {
    rewrite(form, before);
    await ready();
    rewrite(form, before, touched);
  }
  return { before: Boolean(before), keep, restore };
}

/**
 * A way to send a form: `send(control, done, prefix)` waits until its lists are there, and gives `done` what `body()` makes of it.
 * What is wrong is told beside its fields, whose names the server begins with `prefix`, and the rest in `summary`. Where the form has
 * another name for a field than the server, `named(name)` is that.
 */
export function sending(form, summary, { ready, body, named = (name) => name }) {
  form.prepend(notAllowed("submit"));
  return (control, done, prefix = "") => busy(control, async () => {
    clear(form);
    summary.hidden = true;
    try {
      await ready(); // until then a list has nothing to choose from
      const going = [...form.querySelectorAll("[data-going]")].find((one) => !one.closest("[hidden]"));
      if (going) {
        wrong(going, `${going.dataset.going} is still uploading: wait until it has arrived, or stop it.`);
        return going.focus();
      }
      const made = madeOf(body);
      if (made) await done(made);
    } catch (error) {
      if (!(error instanceof Problem || error instanceof Away)) {
        if (error.name === "AbortError") return;
        throw error;
      }
      const own = (error.fields ?? []).map(({ field: name, message }) => {
        const [place, words] = [name, message].map((one) => one.replace(prefix, ""));
        return { field: named(place), message: words.startsWith(`${place}: `) ? words.slice(place.length + 2) : words };
      });
      const rest = showErrors(form, own);
      const said = h("p", {}, rest.length ? rest.join("; ") : error.message);
      summary.hidden = own.length > 0 && !rest.length;
      summary.replaceChildren(said);
      if (error.passes) untilBack(() => said.isConnected && (summary.hidden = true));
    }
  });
}

/** What `body` makes; or nothing, and what is wrong stands beside its fields. */
function madeOf(body) {
  try {
    return together(body)[0];
  } catch (error) {
    if (!(error instanceof Mistakes)) throw error;
    for (const one of error.found) {
      wrong(one.control, one.message);
      reveal(one.control);
    }
    error.found[0].control.focus();
    return null;
  }
}

/** A way to post: what is sent again after a lost answer is done once, also by a page that was loaded again meanwhile. */
export function posting(signal) {
  let sent = history.state?.sent ?? { body: "", key: "" };
  const keep = (now) => signal.aborted || history.replaceState({ ...history.state, sent: now }, "");
  return async (path, body) => {
    const said = JSON.stringify(body);
    if (said !== sent.body) sent = { body: said, key: once() };
    keep(sent);
    const made = await post(path, body, { headers: { "Idempotency-Key": sent.key }, signal });
    keep((sent = { body: "", key: "" })); // what is sent from here afterwards is meant to be another one
    return made;
  };
}
