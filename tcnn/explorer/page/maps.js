// Drawing attention: a head's map over the grey picture, the border that padding adds, and the pixel that asks.

const HEAT = [213, 94, 0]; // vermilion: told apart from the blue of the query by everybody
const QUERY = "#0072b2";
const CENTRE = "#007a59";

/** base64 of little-endian float32. */
export function floats(text) {
  return new Float32Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
}

/** A layer with its maps, and the combined one: (1 − gate)·content + gate·positional, content alone of heads without a gate; `positional` may be null. */
export function mixed(layer, content, positional) {
  const size = layer.size[0] * layer.size[1];
  const combined = positional === null ? content : content.map((value, at) => {
    const gate = layer.gate[Math.floor(at / size)] ?? 0;
    return (1 - gate) * value + gate * positional[at];
  });
  return { ...layer, maps: { content, positional: positional ?? content, combined } };
}

/** The query [i, j] of a layer that is nearest to a place, [y, x] in shares of the image; of two the later one, as in Python (`Grid.nearest`). */
export function nearest(layer, place) {
  const [left, right, top, bottom] = layer.padding;
  return place.map((share, axis) => {
    const before = axis ? left : top;
    const inside = layer.size[axis] - before - (axis ? right : bottom);
    const steps = (before + share * inside - 0.5 - layer.first[axis]) / layer.stride[axis];
    return Math.min(Math.max(Math.floor(steps + 0.5), 0), layer.queries[axis] - 1);
  });
}

function mapOf(layer, head, part) {
  const size = layer.size[0] * layer.size[1];
  return layer.maps[part].subarray(head * size, (head + 1) * size);
}

/** How strongly a weight is drawn, 0 to 1. Of all maps alike by its root, so that weights of some per cent are seen. */
export function strength(weight, peak, own) {
  return own ? weight / peak : Math.sqrt(weight);
}

/** One head's tile: the whole padded map. Returns its largest weight, and where it is. */
export function drawHead(canvas, layer, head, part, picture, own) {
  const [rows, columns] = layer.size;
  const [left, right, top, bottom] = layer.padding;
  const map = mapOf(layer, head, part);
  const pen = canvas.getContext("2d");
  const cell = [canvas.height / rows, canvas.width / columns];
  pen.clearRect(0, 0, canvas.width, canvas.height);
  hatch(pen, canvas);
  pen.save();
  pen.filter = "grayscale(1) brightness(1.15) contrast(0.75)";
  pen.drawImage(picture, left * cell[1], top * cell[0], (columns - left - right) * cell[1], (rows - top - bottom) * cell[0]);
  pen.restore();
  const peak = heat(pen, map, columns, own, (row, column) => [column * cell[1], row * cell[0], cell[1], cell[0]]);
  box(pen, layer.query[1] * cell[1], layer.query[0] * cell[0], cell[1], cell[0]);
  return peak;
}

/** The picture itself, with the pixel that asks, and a head's map if one is chosen. */
export function drawPicture(canvas, layer, head, part, picture, { own, circles }) {
  const [rows, columns] = layer.size;
  const [left, right, top, bottom] = layer.padding;
  const scale = Math.max(1, Math.round(448 / Math.max(picture.naturalWidth, picture.naturalHeight)));
  canvas.width = picture.naturalWidth * scale;
  canvas.height = picture.naturalHeight * scale;
  const pen = canvas.getContext("2d");
  const cell = [canvas.height / (rows - top - bottom), canvas.width / (columns - left - right)];
  pen.imageSmoothingEnabled = scale < 4;
  if (head !== null) pen.filter = "grayscale(1) brightness(1.15) contrast(0.75)";
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  pen.filter = "none";
  const at = (row, column) => [(column - left) * cell[1], (row - top) * cell[0], cell[1], cell[0]];
  if (head !== null) heat(pen, mapOf(layer, head, part), columns, own, at);
  const [x, y] = at(...layer.query);
  box(pen, x, y, cell[1], cell[0], 3);
  if (circles) for (const each of head === null ? layer.centres.keys() : [head]) rings(pen, layer, each, at, cell, head !== null);
}

/** A head's centre, and the circles that hold 50 % and 90 % of its positional attention; of all heads the first alone. */
function rings(pen, layer, head, at, cell, both) {
  const centre = layer.centres[head];
  if (!centre) return;
  const [x, y] = at(layer.query[0] + centre[0] + 0.5, layer.query[1] + centre[1] + 0.5);
  for (const [place, radius] of layer.radii[head].slice(0, both ? 2 : 1).entries()) {
    for (const [colour, wide] of [["#ffffff", 4], [CENTRE, 2]]) {
      pen.setLineDash(place ? [7, 5] : []);
      pen.strokeStyle = colour;
      pen.lineWidth = wide;
      pen.beginPath();
      pen.ellipse(x, y, Math.max(1, radius * cell[1]), Math.max(1, radius * cell[0]), 0, 0, 2 * Math.PI);
      pen.stroke();
    }
  }
  pen.setLineDash([]);
  for (const [colour, radius] of [["#ffffff", 5], [CENTRE, 3.5]]) {
    pen.fillStyle = colour;
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.fill();
  }
}

/** How far a head looks: the mean distance from the pixel that asks, in pixels of the map, as the map weighs it. */
export function distance(layer, head, part) {
  const [, columns] = layer.size;
  const [row, column] = layer.query;
  let sum = 0;
  mapOf(layer, head, part).forEach((weight, place) => (sum += weight * Math.hypot(Math.floor(place / columns) - row, (place % columns) - column)));
  return sum;
}

function heat(pen, map, columns, own, at) {
  let peak = 0;
  let where = 0;
  map.forEach((value, place) => {
    if (value > peak) [peak, where] = [value, place];
  });
  map.forEach((value, place) => {
    const share = strength(value, peak, own);
    if (share < 0.01) return;
    pen.fillStyle = `rgb(${HEAT.join(" ")} / ${0.9 * share})`;
    pen.fillRect(...at(Math.floor(place / columns), place % columns));
  });
  return { peak, row: Math.floor(where / columns), column: where % columns };
}

function box(pen, x, y, width, height, line = 2) {
  for (const [colour, extra] of [["#ffffff", 2], [QUERY, 0]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = line + extra;
    pen.strokeRect(x + 1, y + 1, Math.max(3, width - 2), Math.max(3, height - 2));
  }
}

/** Padding is no image, but heads can look at it. */
function hatch(pen, canvas) {
  pen.fillStyle = "#d5dae0";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.strokeStyle = "#b9c1ca";
  pen.lineWidth = 1;
  pen.beginPath();
  for (let at = -canvas.height; at < canvas.width; at += 6) {
    pen.moveTo(at, canvas.height);
    pen.lineTo(at + canvas.height, 0);
  }
  pen.stroke();
}
