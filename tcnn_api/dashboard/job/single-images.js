// Single images of a result: what they are, what was answered, and the way to the explorer.

import { h, isolated } from "../dom.js";
import { count, percent } from "../components/format.js";
import { breakable, path } from "../components/scrolling.js";
import { key } from "../server/http.js";

/**
 * A list of images; `looked` makes the address of one in the explorer of its name, or is null where there is none. `over` and `of`
 * are what the two models are called whose answers differ.
 */
export function gallery(title, images, all, looked, { over, of } = {}) {
  const words = `${title}: ${count(all)}${images.length < all ? `, showing ${count(images.length)}` : ""}`;
  return [h("h3", {}, words), images.length ? h("ul", { class: "changed" }, images.map((one) => item(one, looked, over, of))) : h("p", {}, "None.")];
}

function item(image, looked, over, of) {
  const said = image.answer === undefined
    ? [[over, `${isolated(image.before)}, ${percent(image.before_confidence, 0)}`], [of, `${isolated(image.after)}, ${percent(image.after_confidence, 0)}`]]
    : [["Predicted as", `${isolated(image.answer)}, ${percent(image.confidence, 0)}`]];
  return h("li", {},
    image.thumbnail && h("img", { src: image.thumbnail, alt: "", loading: "lazy" }),
    h("dl", {}, [["True class", image.target], ...said].map(([word, text]) => h("div", {}, h("dt", {}, breakable(word)), " ", h("dd", {}, breakable(text))))),
    h("code", { title: image.file }, looked ? h("a", { href: looked(image.file) }, path(image.file)) : path(image.file)));
}

/** The explorer of a job at an image of an uploaded data set; null where there is no such job or data set, or a link opens neither. */
export function explorer(job, data) {
  if (key.isLent() || !/^job_/.test(job ?? "") || !/^ds_/.test(data ?? "")) return null;
  return (file) => `#/jobs/${job}/attention?${new URLSearchParams({ dataset: data, file })}`;
}
