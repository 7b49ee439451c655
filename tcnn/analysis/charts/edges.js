// Where a region scrolls: its edges with more behind them are told in `data-more`, by which the page's style fades them.

function mark(region) {
  const { scrollLeft: x, scrollTop: y, scrollWidth, scrollHeight, clientWidth, clientHeight } = region;
  const edges = { left: x > 1, right: x + clientWidth < scrollWidth - 1, top: y > 1, bottom: y + clientHeight < scrollHeight - 1 };
  region.dataset.more = Object.keys(edges).filter((edge) => edges[edge]).join(" ");
}

const sizes = new ResizeObserver((changes) => changes.forEach(({ target }) => mark(target.closest("[data-more]"))));

/** Keep the edges of a region told, whatever is done to it or to its only child. */
export function watchEdges(region) {
  region.dataset.more = "";
  region.addEventListener("scroll", () => mark(region));
  sizes.observe(region);
  sizes.observe(region.firstElementChild);
}
