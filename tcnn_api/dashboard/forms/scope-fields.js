// The fields of a content scope, as `global`, `window:14` or `pooled:7,unpadded`: what a query's content attention sees.

import { field, read, select, tick, whole } from "../components/form.js";

const EXAMPLES = { window: "14", pooled: "7" };

export function contentScope() {
  const kind = select([["global", "Every pixel (global)"], ["window", "The query’s window (window)"], ["pooled", "Means on a grid (pooled)"]]);
  const size = whole();
  const unpadded = tick(false);
  const sized = field("content.size", "Window or grid", size, { hint: "Map pixels, or means, per side." });

  function chosen() {
    sized.hidden = kind.value === "global";
    size.placeholder = EXAMPLES[kind.value] ?? "";
  }

  kind.addEventListener("change", chosen);
  chosen();
  return {
    parts: [
      field("content", "Content attention sees", kind, { half: true }), sized,
      field("content.unpadded", "Exclude the padding", unpadded, { half: true, hint: "By default the zeros around the map count as keys." })],
    fill(scope) {
      const [, word, found, without] = (scope ?? "global").match(/^(\w+)(?::(\d+))?(,unpadded)?$/) ?? [null, "global"];
      kind.value = word;
      size.value = found ?? "";
      unpadded.checked = Boolean(without);
      chosen();
    },
    body() {
      const found = read(size);
      if (kind.value !== "global" && !found) throw Object.assign(new Error(`Expected a number from 1, for example ${EXAMPLES[kind.value]}.`), { control: size });
      return `${kind.value}${kind.value === "global" ? "" : `:${found}`}${unpadded.checked ? ",unpadded" : ""}`;
    },
  };
}
