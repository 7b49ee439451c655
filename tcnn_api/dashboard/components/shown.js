// Calls of what is part of a page, and only as long as it is: a listener of the document's, or in a list, would hold an element
// that was left with all of its page until the next paste or upload, which may never come.

/** A kind of call by its `name`, a word in lower case: `add(element, call)`, and `make(...told)`, which calls those of all elements that are shown. */
export function callsOfShown(name) {
  const calls = new WeakMap();
  const mark = `data-on-${name}`;
  return {
    add(element, call) {
      element.setAttribute(mark, "");
      calls.set(element, [...(calls.get(element) ?? []), call]);
    },
    make(...told) {
      for (const element of document.querySelectorAll(`[${mark}]`)) for (const call of calls.get(element) ?? []) call(...told);
    },
  };
}
