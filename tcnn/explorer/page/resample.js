// Resizing as Pillow does it, to the last bit: what the network was trained on, and not what a browser makes of it.
//
// A separable convolution: the filter is as wide as the scale when an image becomes smaller, its weights have 22 bits
// behind the point, and there are whole numbers between the two passes.

const PRECISION = 2 ** 22;

/** Kernels: [support, value at a distance]. Cubic is Keys' with a = −½. */
const FILTERS = {
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  bicubic: [2, (x) => cubic(Math.abs(x), -0.5)],
  lanczos: [3, (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0)],
};

export const filters = Object.keys(FILTERS);

function cubic(x, a) {
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

/** Of every pixel of the result along an axis: its first source pixel, and the weights from there on. */
function weights(from, to, filter) {
  const [support, kernel] = FILTERS[filter];
  const scale = from / to;
  const wide = Math.max(scale, 1);
  return Array.from({ length: to }, (_, at) => {
    const centre = (at + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support * wide + 0.5));
    const end = Math.min(from, Math.trunc(centre + support * wide + 0.5));
    const raw = Array.from({ length: end - first }, (__, step) => kernel((first + step - centre + 0.5) / wide));
    const sum = raw.reduce((total, weight) => total + weight, 0);
    return { first, weights: raw.map((weight) => rounded((weight / (sum || 1)) * PRECISION)) };
  });
}

/** To the nearest whole number, halves away from zero. */
function rounded(value) {
  return value < 0 ? Math.trunc(value - 0.5) : Math.trunc(value + 0.5);
}

/** Pixels of another size; `image` is {data, width, height, channels}, 8 bits a channel, row by row. */
export function resize(image, width, height, filter) {
  // Whole numbers in between make the order matter. Pillow 13 begins with the rows where they become fewer by more than
  // twice what the columns do (found by trying sizes of all kinds); before, it always began with the columns.
  const lost = image.height - height;
  if (lost > 0 && lost > 2 * (image.width - width)) return horizontal(vertical(image, height, filter), width, filter);
  return vertical(horizontal(image, width, filter), height, filter);
}

function horizontal({ data, width, height, channels }, to, filter) {
  if (width === to) return { data, width, height, channels };
  const made = new Uint8ClampedArray(to * height * channels);
  weights(width, to, filter).forEach(({ first, weights: taps }, at) => {
    for (let row = 0; row < height; row += 1) {
      for (let channel = 0; channel < channels; channel += 1) {
        let sum = PRECISION / 2;
        let place = (row * width + first) * channels + channel;
        for (const tap of taps) {
          sum += tap * data[place];
          place += channels;
        }
        made[(row * to + at) * channels + channel] = Math.floor(sum / PRECISION);
      }
    }
  });
  return { data: made, width: to, height, channels };
}

function vertical({ data, width, height, channels }, to, filter) {
  if (height === to) return { data, width, height, channels };
  const line = width * channels;
  const made = new Uint8ClampedArray(line * to);
  weights(height, to, filter).forEach(({ first, weights: taps }, at) => {
    for (let column = 0; column < line; column += 1) {
      let sum = PRECISION / 2;
      let place = first * line + column;
      for (const tap of taps) {
        sum += tap * data[place];
        place += line;
      }
      made[at * line + column] = Math.floor(sum / PRECISION);
    }
  });
  return { data: made, width, height: to, channels };
}
