// The data sets: upload some, see what there is, go to one.

import { h } from "../dom.js";
import { bytes, count, date } from "../components/format.js";
import { listing } from "./listing.js";
import { ARCHIVES, dropZone } from "./uploads.js";

export function show(main, query) {
  document.title = "Data · tcnn";
  const leaving = new AbortController();
  const zone = dropZone({
    label: "Upload images", accept: ARCHIVES, folders: true, route: () => "datasets",
    hint: "Drop archives (zip or tar) or folders here, or choose them: one folder of images per class, or train/ and val/ that contain such folders.",
  });
  main.append(h("div", { class: "head" }, h("h1", {}, "Data sets")), zone, ...listing("datasets", {
    title: "Data sets", none: "None uploaded yet.", heads: ["Name", "Images", "Classes", "Splits", "Archive", "Uploaded"],
    cells: (one) => [count(one.images), count(one.classes.length), splits(one), bytes(one.size), date(one.created_at)],
    link: (one) => `#/data/${one.id}`, after: query.get("after") ?? "", home: "#/data", older: (next) => `#/data?after=${next}`, signal: leaving.signal,
  }));
  return () => leaving.abort();
}

function splits(one) {
  return Object.entries(one.splits).map(([name, images]) => `${name} ${count(images)}`).join(", ") || "–";
}
