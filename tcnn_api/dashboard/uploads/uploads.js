// Where files are chosen or dropped that are to be sent; how far they are is shown by the outbox.

import { fresh, h, isolated, say } from "../dom.js";
import { onDrop } from "../components/dropping.js";
import { field, wrong } from "../components/form.js";
import { bytes } from "../components/format.js";
import { notAllowed } from "../components/tenants.js";
import { found, onUploaded, send } from "./outbox.js";
import { chosenFiles, filesOf, tar } from "./packing.js";

export const ARCHIVES = ".zip,.tar,.gz,.tgz,.bz2,.xz";
export const WEIGHTS = ".safetensors,.pth,.pt,.bin,.ckpt,.tar";

/** Where a file of a model belongs: a checkpoint of tcnn's says so in its header, and all others are a CNN's weights. */
export async function modelRoute(file) {
  if (!file.name.toLowerCase().endsWith(".safetensors")) return "weights";
  try {
    const length = Number(new DataView(await file.slice(0, 8).arrayBuffer()).getBigUint64(0, true));
    const header = JSON.parse(await file.slice(8, 8 + length).text());
    return header.__metadata__?.conversion ? "checkpoints" : "weights";
  } catch {
    return "checkpoints"; // whether it is whole, the server says
  }
}

/**
 * A place to drop files on, or to choose them; all are sent, one after the other. `route(file)` says where to. With `folders`
 * class folders are packed here and sent, too.
 */
export function dropZone({ label, hint, accept, route, folders = false }) {
  const id = fresh("files");
  const file = h("input", { type: "file", accept, id, multiple: true, "aria-describedby": `${id}-how` });
  const folder = folders && h("input", { type: "file", id: `${id}-folder`, webkitdirectory: true });
  const element = h("section", { class: "card uploads", "aria-label": label },
    h("h2", {}, label), notAllowed("upload"),
    h("div", { class: "drop changes" },
      h("div", { class: "pickers" },
        h("div", {}, h("label", { for: id }, "Files"), file),
        folder && h("div", {}, h("label", { for: `${id}-folder` }, "A folder of class folders"), folder)),
      h("p", { class: "hint", id: `${id}-how` }, hint)));
  const add = (name, making) => send(name, { queue: label, making, route });

  /** What is not there is said as a refusal. */
  function packed(name, listing) {
    add(name, async () => {
      const files = await listing();
      if (!files.some((one) => one.kind === "image")) throw new Error("There are no images in this folder.");
      return tar(name, files);
    });
  }

  file.addEventListener("change", () => {
    for (const one of file.files) add(one.name, async () => one);
    file.value = "";
  });
  if (folder) {
    folder.addEventListener("change", () => {
      const files = chosenFiles(folder.files); // at once: the field is emptied
      if (folder.files.length) packed(folder.files[0].webkitRelativePath.split("/")[0], () => files);
      folder.value = "";
    });
  }
  onDrop(element, (dropped) => {
    const items = [...dropped.items];
    const entries = items.map((item) => item.webkitGetAsEntry?.());
    [...dropped.files].forEach((one, place) => {
      const entry = entries[place];
      if (folders && entry?.isDirectory) packed(entry.name, () => filesOf(entry));
      else add(one.name, async () => one);
    });
  });
  return element;
}

/**
 * One file of a form, sent at once, and chosen in the list `into` when it has arrived; until then the form is not sent without it.
 * What arrives from elsewhere joins the list, too. `listed(made)` is its option, `chosen()` hears of a choice.
 */
export function uploader(route, label, accept, { into, listed, chosen = () => {}, needed = true, hint }) {
  const control = h("input", { type: "file", accept });
  const word = h("p", { class: "hint" }); // the outbox says aloud what becomes of it
  let going = 0;
  control.addEventListener("change", () => {
    const [file] = control.files;
    control.value = "";
    if (!file) return;
    const over = () => (going -= 1) || delete control.dataset.going;
    send(file.name, {
      queue: route, making: async () => file, route: async () => route,
      begun() {
        wrong(control, "");
        say(word, `Sending ${isolated(file.name)} (${bytes(file.size)})…`);
        control.dataset.going = file.name;
        going += 1;
      },
      done(made) {
        over();
        wrong(control, "");
        say(word, `${isolated(made.name)}: ${found(made)}`);
        join(into, listed(made), true);
        chosen();
      },
      failed(message) {
        over();
        say(word, "");
        wrong(control, message);
      },
      stopped() {
        over();
        wrong(control, "");
        say(word, "");
      },
    });
  });
  joining(into, route, { listed, chosen, needed });
  return field("file", label, control, { wide: true, hint, extra: word });
}

/** What arrives while a form is open joins a list of the form's; where nothing is chosen that is needed, it is. */
export function joining(into, route, { listed, chosen = () => {}, needed = true }) {
  onUploaded(into, (made, path) => {
    if (path !== route) return;
    join(into, listed(made), needed && !into.value);
    chosen();
  });
}

function join(into, [value, word], choose) {
  if (![...into.options].some((option) => option.value === value)) {
    const before = into.value;
    into.prepend(h("option", { value }, word));
    into.value = before;
  }
  if (choose) into.value = value;
}
