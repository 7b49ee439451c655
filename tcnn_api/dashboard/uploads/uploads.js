// Files on their way to the server: chosen or dropped, one after the other, each with how far it is and what was found in it.

import { announce, fresh, h, say } from "../dom.js";
import { onDrop } from "../components/dropping.js";
import { field, wrong } from "../components/form.js";
import { bytes, count, percent } from "../components/format.js";
import { Away, once, upload } from "../server/http.js";
import { chosenFiles, filesOf, tar } from "./packing.js";

export const ARCHIVES = ".zip,.tar,.gz,.tgz,.bz2,.xz";
export const WEIGHTS = ".safetensors,.pth,.pt,.bin,.ckpt,.tar";

/** What the server found in an upload, in a line. */
export function found(made) {
  if (made.classes) return `${count(made.images)} images of ${count(made.classes.length)} classes (${made.classes.slice(0, 5).join(", ")}${made.classes.length > 5 ? ", …" : ""}).`;
  if (made.tensors) return `${count(made.tensors)} tensors${made.architecture ? ` of ${made.architecture}` : ""}.`;
  return `${made.base_model}.`;
}

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
 * A place to drop files on, or to choose them; all are sent, one after the other. `route(file)` says where to,
 * `done(made, path)` hears of each that has arrived. With `folders` class folders are packed here and sent, too.
 */
export function dropZone({ label, hint, accept, route, done, folders = false }) {
  const id = fresh("files");
  const file = h("input", { type: "file", accept, id, multiple: true, "aria-describedby": `${id}-how` });
  const folder = folders && h("input", { type: "file", id: `${id}-folder`, webkitdirectory: true });
  const list = h("ul", { class: "sending", "aria-label": "Uploads" });
  const element = h("section", { class: "card uploads", "aria-label": label },
    h("h2", {}, label),
    h("div", { class: "drop" },
      h("div", { class: "pickers" },
        h("div", {}, h("label", { for: id }, "Files"), file),
        folder && h("div", {}, h("label", { for: `${id}-folder` }, "A folder of class folders"), folder)),
      h("p", { class: "hint", id: `${id}-how` }, hint)),
    list);
  let queue = Promise.resolve();

  function add(name, making) {
    const leaving = new AbortController();
    const bar = h("progress", { max: "1", "aria-label": `Upload of ${name}` });
    const word = h("span", { class: "muted", role: "status" }, "Waiting…");
    const stop = h("button", { type: "button", class: "quiet", onclick: () => leaving.abort() }, "Stop");
    const item = h("li", {}, h("b", {}, name), word, bar, h("span", { class: "buttons" }, stop));
    list.append(item);
    leaving.signal.addEventListener("abort", () => item.remove());
    const idempotency = once(); // the server may have it, though its answer was lost
    const begin = () => {
      queue = queue.then(() => leaving.signal.aborted || send(making, leaving.signal, { item, bar, word, stop, idempotency, begin }));
    };
    begin();
  }

  async function send(making, signal, { item, bar, word, stop, idempotency, begin }) {
    try {
      const one = await making();
      const path = await route(one);
      const made = await upload(path, one, {
        idempotency,
        signal,
        progress: (share) => {
          if (share < 1) bar.value = share;
          else bar.removeAttribute("value");
          say(word, share < 1 ? `${percent(share, 0)} of ${bytes(one.size)}` : "Sent. The server looks at it…");
        },
      });
      say(word, found(made));
      item.classList.add("sent");
      announce(`${made.name} was uploaded.`);
      done(made, path);
    } catch (error) {
      if (error.name === "AbortError") return;
      say(word, error.fields?.[0]?.message ?? error.message);
      item.classList.add("refused");
      word.className = "error";
      word.setAttribute("role", "alert");
      if (passing(error)) {
        const again = h("button", { type: "button", "aria-label": `Try again to send ${item.querySelector("b").textContent}`, onclick: () => {
          again.remove();
          item.classList.remove("refused");
          word.className = "muted";
          word.setAttribute("role", "status");
          say(word, "Waiting…");
          bar.removeAttribute("value");
          word.after(bar);
          stop.textContent = "Stop";
          stop.removeAttribute("aria-label");
          stop.focus();
          begin();
        } }, "Try again");
        stop.before(again);
      }
    }
    bar.remove();
    stop.textContent = "Dismiss";
    stop.setAttribute("aria-label", `Dismiss ${item.querySelector("b").textContent}`);
  }

  /** What is not there is said as a refusal. */
  function packed(name, listing) {
    add(name, async () => {
      const files = await listing();
      if (!files.some((one) => one.file)) throw new Error("There is no image in this folder.");
      return tar(name, files);
    });
  }

  file.addEventListener("change", () => {
    for (const one of file.files) add(one.name, async () => one);
    file.value = "";
  });
  if (folder) {
    folder.addEventListener("change", () => {
      const files = chosenFiles(folder.files);
      if (folder.files.length) packed(folder.files[0].webkitRelativePath.split("/")[0], async () => files);
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
  return { element, waiting: () => list.querySelector("progress") !== null };
}

/** Whether what was not taken may be taken another time. */
function passing(error) {
  return error instanceof Away || error.status >= 500 || error.status === 429 || error.status === 401;
}

/** One file of a form, sent at once; how far it is, and what was found in it. What broke off is sent again as the same one. */
export function uploader(route, label, accept, done, hint) {
  const control = h("input", { type: "file", accept });
  const progress = h("progress", { max: "1", value: "0", hidden: true, "aria-label": "Upload" });
  const word = h("p", { class: "hint", role: "status" });
  const again = h("button", { type: "button", hidden: true }, "Try again");
  const part = field("file", label, control, { wide: true, hint, extra: [progress, word, again] });
  control.addEventListener("change", () => {
    const file = control.files[0];
    const idempotency = once();
    again.onclick = () => send(file, idempotency);
    if (file) again.onclick();
  });

  async function send(file, idempotency) {
    const focused = [control, again].includes(document.activeElement);
    wrong(control, "");
    again.hidden = true;
    progress.hidden = false;
    control.disabled = true;
    say(word, `Sending ${file.name} (${bytes(file.size)})…`);
    try {
      const made = await upload(route, file, {
        idempotency,
        progress: (share) => {
          progress.value = share;
          say(word, share < 1 ? `Sending ${file.name}: ${percent(share, 0)}` : "Sent. The server looks at it…");
        },
      });
      say(word, `${made.name}: ${found(made)}`);
      done(made);
    } catch (error) {
      say(word, "");
      wrong(control, error.fields?.[0]?.message ?? error.message);
      again.hidden = !passing(error);
      say(again, `Try again to send ${file.name}`);
    } finally {
      progress.hidden = true;
      control.disabled = false;
      control.value = "";
      if (focused && document.activeElement === document.body) (again.hidden ? control : again).focus();
    }
  }
  return part;
}
