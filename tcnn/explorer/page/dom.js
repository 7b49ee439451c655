// Elements, made in one place: whatever a stranger named becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. `onclick` and the like are listeners, null and false leave an attribute out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Letters that run from right to left, as Unicode's blocks hold them, and marks that turn what follows. */
const TURNING = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}\u200e\u200f\u202a-\u202e\u2066-\u2069]/u;

/**
 * A name in a sentence or in an option. One that runs from right to left takes numbers and punctuation after it along, to the
 * left of it, unless it is isolated (U+2068 to U+2069). Others stay as they are: who copies a text finds no unseen marks in it.
 */
export function isolated(name) {
  return TURNING.test(name) ? `\u2068${name}\u2069` : String(name);
}

/** Set text only where it differs, so that a screen reader is not told the same thing again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Tell people who do not see the page. */
export function announce(text) {
  say(document.getElementById("announcer"), text);
}

let numbers = 0;

/** An id that nothing else on the page has. */
export function fresh(prefix) {
  numbers += 1;
  return `${prefix}-${numbers}`;
}
