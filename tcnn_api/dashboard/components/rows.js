// Rows that are drawn anew while somebody is in them: the focus stays where it was.

/** The elements that a place is to have; only what is new or moved is touched. Those of one row have one `data-row`. */
export function putRows(place, wanted) {
  const had = place.contains(document.activeElement) ? document.activeElement : null;
  const row = had?.closest("[data-row]");
  const at = row ? controls(row).indexOf(had) : -1;
  for (const child of [...place.children]) if (!wanted.includes(child)) child.remove();
  wanted.forEach((element, number) => {
    if (place.children[number] !== element) place.insertBefore(element, place.children[number] ?? null);
  });
  if (at < 0 || place.contains(document.activeElement)) return;
  const now = wanted.find((element) => element.dataset.row === row.dataset.row);
  if (now) controls(now)[at]?.focus({ preventScroll: true });
}

function controls(row) {
  return [...row.querySelectorAll("a, button, input")];
}
