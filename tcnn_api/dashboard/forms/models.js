// The catalogue as a combobox: type a part of a name, choose with the mouse or the arrow keys.

import { fresh, h, say } from "../dom.js";
import { short, some } from "../components/format.js";
import { get, whenBack } from "../server/http.js";

const MOST = 40;

/** A text field with suggestions from GET /models, and a line that tells what is known of the chosen model. */
export function modelPicker({ value = "" } = {}) {
  const id = fresh("models");
  const list = h("ul", { id, role: "listbox", "aria-label": "Models", class: "options", hidden: true });
  const input = h("input", {
    type: "text", autocomplete: "off", spellcheck: "false", role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false",
    "aria-controls": id, placeholder: "resnet50d, convnext…", value,
  });
  const status = h("p", { class: "about-model hint", "aria-live": "polite" });
  const box = h("div", { class: "combo" }, list);
  let found = [];
  let active = -1;
  let coming = null; // the search for a list that was opened by a key: what Enter chooses is not there yet
  let timer;
  let asking = new AbortController();

  async function search() {
    asking.abort();
    asking = new AbortController();
    try {
      const query = new URLSearchParams({ query: input.value.trim(), limit: MOST, convertible: "true" });
      const page = await get(`models?${query}`, { signal: asking.signal });
      found = page.data;
      draw(page.has_more);
    } catch (error) {
      if (error.name === "AbortError") return;
      close();
      fail(error, search);
    }
  }

  /** By an arrow key, with a model marked. */
  async function open(place) {
    const own = (coming = search());
    await own;
    if (coming !== own) return; // closed meanwhile
    coming = null;
    if (!list.hidden) mark(place);
  }

  /** Say why nothing is known; what could not be asked is asked when the server is back, of what stands in the field by then. */
  function fail(error, again) {
    say(status, error.message);
    if (error.passes) whenBack(() => input.isConnected && status.textContent === error.message && again());
  }

  function draw(more) {
    active = -1;
    input.removeAttribute("aria-activedescendant");
    list.replaceChildren(...found.map((model, place) => h("li", {
      role: "option", id: `${id}-${place}`, "aria-selected": "false",
      onpointerdown: (event) => (event.preventDefault(), choose(place)),
    }, h("span", {}, model.name), h("span", { class: "muted" }, `${short(model.parameters)} → ${short(model.converted_parameters)}`))));
    if (!found.length) {
      close();
      say(status, input.value.trim() ? "No convertible model has this in its name." : "");
      return;
    }
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    say(status, `${more ? `${found.length} or more models` : some(found.length, "model")}; parameters before → after.`);
  }

  function close() {
    coming = null;
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function choose(place) {
    const model = found[place];
    input.value = model.name;
    close();
    asking.abort();
    tell(model);
    input.dispatchEvent(new Event("change", { bubbles: true }));
  }

  function tell(model) {
    const weights = model.weights.length ? `weights: ${model.weights.slice(0, 4).join(", ")}${model.weights.length > 4 ? ", …" : ""}` : "no pretrained weights";
    say(status, `Converts ${some(model.layers, "layer")} (${model.kernels.join(", ")}) of ${model.stage}; ${short(model.parameters)} → ${short(model.converted_parameters)} parameters; ${model.input_size.slice(1).join("×")} pixels; ${weights}.`);
  }

  /** What was typed without choosing may still be a model's name. */
  async function confirm() {
    asking.abort();
    const name = input.value.trim().split(".")[0];
    if (!name) return say(status, "");
    asking = new AbortController();
    try {
      const query = new URLSearchParams({ query: name, limit: 500, convertible: "true" });
      const exact = (await get(`models?${query}`, { signal: asking.signal })).data.find((model) => model.name === name);
      if (exact) tell(exact);
      else say(status, "");
    } catch (error) {
      if (error.name !== "AbortError") fail(error, confirm);
    }
  }

  function mark(place) {
    const options = [...list.children];
    options[active]?.setAttribute("aria-selected", "false");
    active = (place + options.length) % options.length;
    options[active].setAttribute("aria-selected", "true");
    options[active].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", options[active].id);
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, 120);
  });
  input.addEventListener("blur", () => {
    clearTimeout(timer);
    close();
    confirm();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const down = event.key === "ArrowDown";
      if (list.hidden) open(down ? 0 : -1);
      else if (active < 0) mark(down ? 0 : -1);
      else mark(active + (down ? 1 : -1));
    } else if (event.key === "Enter" && (coming || !list.hidden && active >= 0)) {
      event.preventDefault();
      if (!coming) choose(active);
    } else if (event.key === "Escape") {
      if (!list.hidden) event.preventDefault();
      clearTimeout(timer); // nor does a list that is still to come open
      asking.abort();
      close();
    }
  });
  /** Begin with a model that somebody else has chosen. */
  function set(name) {
    input.value = name;
    confirm();
  }

  return { input, set, extra: [box, status] };
}
