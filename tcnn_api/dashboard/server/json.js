// JSON without a change to any number: whole numbers that JavaScript would round stay the digits that they are, as text, which
// the server takes for a number wherever it expects one.

const ROUNDED = /[\s:[,]-?\d{16,}[\s,\]}]|^-?\d{16,}$/; // what may have one: a long answer is looked through once
const VALUES = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Whether these are the digits of a whole number that would be another one. */
export function isRounded(digits) {
  return /^[+-]?\d+$/.test(digits) && !Number.isSafeInteger(Number(digits));
}

/** What a text of JSON says; throws SyntaxError as `JSON.parse` does. */
export function parsed(text) {
  return JSON.parse(ROUNDED.test(text) ? text.replace(VALUES, (value) => (isRounded(value) ? `"${value}"` : value)) : text);
}
