// What a fine-tuning job would take, asked before it is submitted.

import { h } from "../dom.js";
import { bytes, count, duration, short, some } from "../components/format.js";

/** The answer of `POST /plan` as a card. */
export function planned(plan) {
  const { source, result, memory, disk, expected, baseline } = plan;
  const both = baseline ? disk.total + baseline.disk.total : disk.total;
  const held = Math.max(memory.expected, baseline?.memory.expected ?? 0);
  return h("section", { class: "card" },
    h("h2", {}, "What it will take"),
    h("dl", { class: "facts roomy" },
      fact("Images", `${count(plan.train_images)} to train on, ${count(plan.val_images)} held out`),
      fact("Updates", `${count(plan.updates)} in ${some(plan.epochs, "epoch")}${baseline ? ", and as many for the CNN" : ""}`),
      fact("Parameters", source ? `${short(source.parameters)} → ${short(result.parameters)}` : short(result.parameters)),
      result.flops !== null && fact("FLOPs per image", source?.flops ? `${short(source.flops)} → ${short(result.flops)}` : short(result.flops)),
      fact(plan.device === "cpu" ? "Memory" : "GPU memory", `${bytes(held)}${memory.free === null ? "" : ` of ${bytes(memory.free)}`}`),
      fact("Disk", `${bytes(both)} of ${bytes(disk.free)} free`),
      fact("Checkpoint", bytes(disk.checkpoint)),
      fact("Time", expected ? ["about ", duration(expected.seconds), ", based on ", h("a", { href: `#/jobs/${expected.job}` }, "an earlier job")] : "unknown: no similar job has run here yet")),
    plan.problems.map((text) => h("p", { class: "error" }, text)),
    plan.notes.map((text) => h("p", { class: "hint" }, text)),
    h("p", { class: "hint" }, "Computed from the tensor shapes of one step; nothing was run or downloaded."));
}

function fact(word, value) {
  return h("div", {}, h("dt", {}, word), h("dd", {}, value));
}
