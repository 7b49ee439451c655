// How far down a page was read, kept with its place in the browser's history: who comes back finds it there.

const REST = 150; // milliseconds without scrolling after which the place is kept: browsers bear few changes a second
const PATIENCE = 10_000; // milliseconds for what a page loads

let stop = () => {};
let resting;
let waiting = false; // for a page to be as long as where it was left: until then it is nowhere

/** From now on every place is kept; the browser, which knows nothing of what is still to be loaded, would go to another one. */
export function keepPlaces() {
  history.scrollRestoration = "manual";
  addEventListener("scroll", () => {
    clearTimeout(resting);
    if (!waiting) resting = setTimeout(() => history.replaceState({ ...history.state, scroll: scrollY }, ""), REST);
  }, { passive: true });
  addEventListener("popstate", () => clearTimeout(resting)); // it is another page's place by now
}

/** Begin a page where it was left, as soon as it is as long as then, or at its beginning; whoever moves meanwhile is left alone. */
export function placed(main) {
  stop();
  const wanted = history.state?.scroll ?? 0;
  scrollTo(0, 0);
  if (!wanted) return;
  const growing = new ResizeObserver(() => {
    if (document.documentElement.scrollHeight < wanted + innerHeight) return;
    scrollTo(0, wanted);
    stop();
  });
  const moves = ["wheel", "touchstart", "pointerdown", "keydown"];
  const timer = setTimeout(() => stop(), PATIENCE);
  waiting = true;
  stop = () => {
    waiting = false;
    growing.disconnect();
    clearTimeout(timer);
    for (const move of moves) removeEventListener(move, stop);
  };
  for (const move of moves) addEventListener(move, stop, { passive: true });
  growing.observe(main);
}
