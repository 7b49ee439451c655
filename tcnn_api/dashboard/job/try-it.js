// Try it: drop an image on a job's page, and see what its models say of it, side by side.

import { fresh, h, isolated, say } from "../dom.js";
import { onDrop } from "../components/dropping.js";
import { percent } from "../components/format.js";
import { callsOfShown } from "../components/shown.js";
import { give } from "../attention/handover.js";
import { ask } from "../server/http.js";
import { trouble } from "../components/parts.js";
import { breakable } from "../components/scrolling.js";

const NAMES = { cnn: "CNN, before", before: "T-CNN, before", tuned_cnn: "CNN, fine-tuned the same way", t_cnn: "T-CNN" };
const MOST = 32 * 2 ** 20; // bytes, as the server says it, too
const cards = callsOfShown("paste");
document.addEventListener("paste", cards.make);

/** A card that takes an image by choice, drop or paste. */
export function tryIt(job) {
  const id = fresh("try");
  const file = h("input", { type: "file", accept: "image/*", id, "aria-describedby": `${id}-how` });
  const picture = h("img", { class: "tried", alt: "The image that was tried", hidden: true });
  const said = h("p", { class: "verdict", role: "status" });
  const answers = h("div", { class: "answers" });
  const problem = h("div");
  const onward = h("p", { hidden: true }, h("a", { class: "button", href: `#/jobs/${job}/attention?image=given` }, "Explore this image"));
  let latest = null;

  const element = h("section", { class: "card try-it", "aria-label": "Try it" },
    h("h2", {}, "Try it"),
    h("div", { class: "drop" }, h("label", { for: id }, "An image"), file,
      h("p", { class: "hint", id: `${id}-how` }, "Choose one, drop one here, or paste one. It is not stored. A camera’s rotation tag is not applied.")),
    problem,
    h("div", { class: "tried-with" }, picture, h("div", {}, said, answers, onward)));

  async function look(image) {
    latest = image;
    problem.replaceChildren();
    answers.replaceChildren();
    onward.hidden = true;
    URL.revokeObjectURL(picture.src);
    picture.src = URL.createObjectURL(image);
    picture.hidden = false;
    if (image.size > MOST) {
      say(said, "");
      problem.replaceChildren(trouble(`Images may have up to 32 MiB; this one has ${Math.ceil(image.size / 2 ** 20)}.`));
      return;
    }
    say(said, "Classifying; the first image takes a few seconds…");
    try {
      const found = await (await ask(`jobs/${job}/predict`, { method: "POST", body: image, headers: { "Content-Type": "application/octet-stream" } })).json();
      if (latest !== image) return;
      say(said, verdict(found));
      answers.replaceChildren(...found.models.map(answer));
      give(job, image);
      onward.hidden = false;
    } catch (error) {
      if (latest !== image) return;
      say(said, "");
      problem.replaceChildren(trouble(error, error.status === 422 || error.status === 413 ? null : () => look(image)));
    }
  }

  picture.addEventListener("error", () => (picture.hidden = true)); // the server may read what a browser does not
  file.addEventListener("change", () => file.files[0] && look(file.files[0]));
  onDrop(element, ({ files }) => files[0] && look(files[0]));
  cards.add(element, (event) => {
    const image = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
    if (!image) return;
    event.preventDefault();
    look(image);
  });
  return element;
}

function verdict({ models, same_first_guess: same }) {
  const able = models.filter((one) => one.same_classes); // who has other classes cannot say the same
  if (same === null) return `${NAMES[able.at(-1).role]}: ${isolated(able.at(-1).guesses[0].name)}.`;
  if (same) return `${able.length === 2 ? "Both" : "All"} say ${isolated(able[0].guesses[0].name)}.`;
  return `They differ: ${able.map((one) => `${isolated(one.guesses[0].name)} (${NAMES[one.role]})`).join("; ")}.`;
}

function answer({ role, missing, guesses, same_classes: same }) {
  return h("section", { class: `answer ${role}` },
    h("h3", {}, NAMES[role]),
    missing && h("p", { class: "muted" }, `No answer: ${missing}.`),
    same === false && h("p", { class: "muted" }, "It has different classes."),
    guesses.length > 0 && h("ol", {}, guesses.map((guess) => {
      const share = h("span", { class: "share", "aria-hidden": "true" });
      share.style.setProperty("--share", guess.probability);
      return h("li", {}, h("span", { class: "guess" }, breakable(guess.name)), h("span", { class: "confidence" }, percent(guess.probability)), share);
    })));
}
