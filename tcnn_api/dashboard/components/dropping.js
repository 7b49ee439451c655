// Files that are dropped on an element, which shows while they are over it that it takes them.

/** A file that is dropped beside such an element is not opened in the place of the page, with all that was written there. */
export function guardDrops() {
  for (const kind of ["dragover", "drop"]) {
    addEventListener(kind, (event) => {
      if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files") || event.target.closest?.("input[type=file]")) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "none";
    });
  }
}

/** Call back with the event's `dataTransfer` when files are dropped on the element. */
export function onDrop(element, dropped) {
  const over = (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    element.classList.add("over");
  };
  element.addEventListener("dragenter", over);
  element.addEventListener("dragover", over);
  element.addEventListener("dragleave", (event) => element.contains(event.relatedTarget) || element.classList.remove("over"));
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    element.classList.remove("over");
    dropped(event.dataTransfer);
  });
}
