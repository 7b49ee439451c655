// A chart as a file: its numbers as CSV, its drawing as SVG or PNG, with title and legend, as it looks just now.

import { s } from "./dom.js";

const ROOM = 30; // pixels above the drawing, for its title,
const LINE = 20; // and of a line of the legend below it
const WIDE = 7; // pixels that a letter of it takes
const SHARP = 2; // pixels of a PNG for one of the page
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-family", "font-weight"];

/** A column for the horizontal axis and one for each series; nothing where a series has no value, nan where that is not finite. */
export function csvOf(series, axis) {
  const values = series.map((one) => new Map(one.points));
  const places = [...new Set(series.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
  const lines = [[axis, ...series.map((one) => one.name)], ...places.map((x) => [x, ...values.map((one) => one.get(x) ?? "")])];
  return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
}

/** Spreadsheets compute what begins like a formula: a name that does has an apostrophe before it. Numbers are as they are. */
function cell(value) {
  if (Number.isNaN(value)) return "nan";
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A document of its own: styles become attributes, since the page's style sheet stays behind. */
export function svgOf(drawing, title, marks) {
  const width = drawing.clientWidth;
  const height = drawing.clientHeight;
  const copy = drawing.cloneNode(true);
  const own = [...drawing.querySelectorAll("*")];
  [...copy.querySelectorAll("*")].forEach((element, place) => dress(element, own[place]));
  copy.querySelector(".cursor")?.remove();
  const face = getComputedStyle(drawing.closest("figure"));
  const words = { fill: face.color, "font-family": face.fontFamily, "font-size": 13 };
  const rows = legend(marks, width - 16);
  const made = s("svg", { xmlns: "http://www.w3.org/2000/svg", width, height: ROOM + height + LINE * rows.length + 6 },
    s("rect", { width: "100%", height: "100%", fill: ground(drawing) }),
    s("text", { x: 8, y: 20, ...words, "font-weight": 600 }, title),
    s("g", { transform: `translate(0 ${ROOM})` }, ...copy.childNodes),
    rows.map((row, number) => row.map(({ x, name, colour }) => s("g", { transform: `translate(${8 + x} ${ROOM + height + LINE * number + 12})` },
      s("rect", { y: -5, width: 14, height: 4, rx: 2, fill: colour }), s("text", { x: 19, ...words }, name)))));
  return new XMLSerializer().serializeToString(made);
}

function dress(element, own) {
  const face = getComputedStyle(own);
  for (const name of STYLES) {
    const value = face.getPropertyValue(name);
    if (value) element.setAttribute(name, value);
  }
  element.removeAttribute("class");
  if (own.closest(".cursor")) element.setAttribute("class", "cursor");
}

/** The first ground that is not transparent: a chart in the dark is saved as it is seen. */
function ground(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour && colour !== "transparent" && !/[,/] ?0\)$/.test(colour)) return colour;
  }
  return "#ffffff";
}

/** Names in lines that are no wider than the drawing. */
function legend(marks, width) {
  const rows = [[]];
  let x = 0;
  for (const one of marks) {
    const wide = 34 + WIDE * one.name.length;
    if (x && x + wide > width) {
      rows.push([]);
      x = 0;
    }
    rows.at(-1).push({ ...one, x });
    x += wide;
  }
  return rows;
}

/** The SVG as pixels. */
export async function pngOf(svg) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = picture.naturalWidth * SHARP;
  canvas.height = picture.naturalHeight * SHARP;
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Hand a file over to the browser. */
export function handOver(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
