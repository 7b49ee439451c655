// An image file as the network takes it: decoded, resized, cropped and normalised by the steps of timm's evaluation.

import { isolated } from "./dom.js";
import { resize } from "./resample.js";
import { unturned } from "./unturned.js";

const STRIP = 20;
/** Of an image that is more than so many times longer than wide only the middle is taken. */

export class NoImage extends Error {}

/** Of a file: `tensor` (C, H, W) for the network, and `picture`, the same as a data URL of what it sees. */
export async function prepare(file, settings) {
  const image = cropped(scaled(channelsOf(await pixels(file), settings.mean.length), settings), settings);
  return { tensor: normalised(image, settings), picture: drawn(image) };
}

/** RGBA as the file has it: colours are not converted, and a camera's rotation mark is not applied. */
async function pixels(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(await unturned(file), { premultiplyAlpha: "none", colorSpaceConversion: "none" });
  } catch {
    throw new NoImage(`${isolated(file.name ?? "This")} cannot be read as an image; choose a JPEG, PNG or WebP file.`);
  }
  const left = Math.floor(Math.max(0, bitmap.width - STRIP * bitmap.height) / 2);
  const top = Math.floor(Math.max(0, bitmap.height - STRIP * bitmap.width) / 2);
  const [width, height] = [bitmap.width - 2 * left, bitmap.height - 2 * top];
  const pen = canvasOf(width, height).getContext("2d", { willReadFrequently: true });
  pen.drawImage(bitmap, -left, -top);
  bitmap.close();
  try {
    return pen.getImageData(0, 0, width, height);
  } catch {
    throw new NoImage(`${isolated(file.name ?? "This image")} has too many pixels for this browser (${width}×${height}); choose a smaller one.`);
  }
}

function canvasOf(width, height) {
  return Object.assign(document.createElement("canvas"), { width, height });
}

/** Red, green and blue, or for a network of one channel the grey that ITU-R 601 makes of them, as Pillow rounds it. */
function channelsOf({ data, width, height }, channels) {
  const made = new Uint8ClampedArray(width * height * channels);
  for (let at = 0; at < width * height; at += 1) {
    const [red, green, blue] = data.subarray(at * 4, at * 4 + 3);
    if (channels === 1) made[at] = (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16;
    else made.set([red, green, blue], at * 3);
  }
  return { data: made, width, height, channels };
}

/** Python's `round`: halves to the even neighbour. */
function even(value) {
  const down = Math.floor(value);
  return value - down === 0.5 ? down + (down % 2) : Math.round(value);
}

/** Scaled so that a crop of the network's size can be taken. */
function scaled(image, { size, crop_pct: share, crop_mode: mode, interpolation }) {
  const wanted = size.map((side) => Math.floor(side / share));
  const own = [image.height, image.width];
  let now = wanted;
  if (mode !== "squash") {
    const ratios = own.map((side, axis) => side / wanted[axis]);
    const ratio = mode === "border" ? Math.max(...ratios) : Math.min(...ratios);
    const square = mode !== "border" && wanted[0] === wanted[1];
    const short = Math.min(...own);
    // Of a square the short side is what is wanted, and the long one is cut off to a whole number; else both are rounded.
    now = own.map((side) => (square ? Math.trunc((wanted[0] * side) / short) : even(side / ratio)));
  }
  return resize(image, now[1], now[0], interpolation);
}

/** The middle, of the network's size; where the image is smaller there is a border, black or of the mean's colour. */
function cropped(image, { size: [height, width], mean, crop_mode: mode }) {
  const { channels } = image;
  const fill = mode === "border" ? mean.map((value) => even(255 * value)) : mean.map(() => 0);
  const data = new Uint8ClampedArray(height * width * channels);
  const offset = (large, small) => (small > large ? -Math.floor((small - large) / 2) : even((large - small) / 2));
  const [top, left] = [offset(image.height, height), offset(image.width, width)];
  for (let row = 0; row < height; row += 1) {
    for (let column = 0; column < width; column += 1) {
      const [y, x] = [row + top, column + left];
      const outside = y < 0 || x < 0 || y >= image.height || x >= image.width;
      const from = (y * image.width + x) * channels;
      for (let channel = 0; channel < channels; channel += 1) {
        data[(row * width + column) * channels + channel] = outside ? fill[channel] : image.data[from + channel];
      }
    }
  }
  return { data, width, height, channels };
}

function normalised({ data, width, height, channels }, { mean, std }) {
  const made = new Float32Array(data.length);
  for (let at = 0; at < width * height; at += 1) {
    for (let channel = 0; channel < channels; channel += 1) {
      made[channel * width * height + at] = (data[at * channels + channel] / 255 - mean[channel]) / std[channel];
    }
  }
  return made;
}

function drawn({ data, width, height, channels }) {
  const canvas = canvasOf(width, height);
  const pen = canvas.getContext("2d");
  const shown = pen.createImageData(width, height);
  for (let at = 0; at < width * height; at += 1) {
    for (let channel = 0; channel < 3; channel += 1) shown.data[at * 4 + channel] = data[at * channels + (channels === 1 ? 0 : channel)];
    shown.data[at * 4 + 3] = 255;
  }
  pen.putImageData(shown, 0, 0);
  return canvas.toDataURL("image/png");
}
