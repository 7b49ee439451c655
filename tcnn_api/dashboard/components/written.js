// Numbers as people write them: in the digits and with the signs of their own script, as pages show them, too.

import { isRounded } from "../server/json.js";

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const GROUPED = /^[+-]?[1-9]\d{0,2}([.,'’٬\s]\d{2,3})*[.,'’٬\s]\d{3}$/; // 1.000 in German, 1,000, 1 000, 1,00,000 in India
const PARTED = /(?<!\d)(\d[,\s]\d{3}|[1-9]\d{1,2}[,\s]0\d\d)(?!\d)/; // 1,000 and 10 024, which in a list would be two numbers
const SIGNS = { "−": "-", "－": "-", "＋": "+", "．": ".", "٫": "." };

/** In the letters that programs read, without marks of direction. */
function ascii(text) {
  return text.replace(/\p{Cf}/gu, "").replace(/(?!\d)\p{Nd}/gu, valueOf).replace(/[−－＋．٫]/g, (sign) => SIGNS[sign]);
}

/** Of a digit: Unicode has the ten of every script in a row, from 0 on. */
function valueOf(digit) {
  const code = digit.codePointAt(0);
  let before = code - 1;
  while (/\p{Nd}/u.test(String.fromCodePoint(before))) before -= 1;
  return String((code - before - 1) % 10);
}

/**
 * The number that a text is; if it is none, or one that JavaScript would round, its letters, of which the server says what it makes.
 * With `whole`, what has separators of thousands is an error: 1.000 is a thousand to many, and 1 to programs.
 */
export function numberIn(text, { whole = false } = {}) {
  const plain = ascii(text).trim();
  if (whole && GROUPED.test(plain)) throw new Error(`Expected a number without separators, such as ${plain.replace(/[^\d-]/g, "")}; found ${plain}.`);
  return NUMBER.test(plain) && Number.isFinite(Number(plain)) && !isRounded(plain) ? Number(plain) : plain;
}

/** The numbers of a list. With `whole`, two that look like one with a separator of thousands are an error. */
export function numbersIn(text, { whole = false } = {}) {
  const [parted] = whole && PARTED.exec(ascii(text)) || [];
  if (parted) throw new Error(`Expected numbers without separators, such as ${parted.replace(/\D/, "")}, and a comma and a space between two; found ${parted}.`);
  return text.split(/[\s,;]+/).filter(Boolean).map((one) => numberIn(one, { whole }));
}

/** Whether this is a whole number to programs and its thousands to many people: 1.000. */
export function isAmbiguous(text) {
  return GROUPED.test(text) && Number.isInteger(Number(text));
}
