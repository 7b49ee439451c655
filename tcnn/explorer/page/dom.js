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
