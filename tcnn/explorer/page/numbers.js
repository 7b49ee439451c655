// Numbers as people read them, in their own locale.

export const NONE = "–";

const whole = new Intl.NumberFormat();

export function count(value) {
  return value === null || value === undefined ? NONE : whole.format(value);
}

/** So many of something: 1 image, 1,000 images; 2 classes. */
export function some(value, one, more = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : more}`;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
  return new Intl.NumberFormat(undefined, { maximumSignificantDigits: digits }).format(value);
}

/** What is more than nothing and less than all is not rounded to these: <0.1%, >99.9%. */
export function percent(share, digits = 1) {
  if (share === null || share === undefined || Number.isNaN(share)) return NONE;
  const format = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: digits });
  const least = 10 ** -(digits + 2);
  if (share > 0 && share < least / 2) return `<${format.format(least)}`;
  if (share < 1 && share > 1 - least / 2) return `>${format.format(1 - least)}`;
  return format.format(share);
}

export function bytes(value) {
  const units = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];
  let step = 0;
  while (Number(value.toPrecision(3)) >= 1000 && step < units.length - 1) {
    value /= 1000;
    step += 1;
  }
  const style = { style: "unit", unit: units[step], unitDisplay: step ? "short" : "long", maximumSignificantDigits: 3 };
  return new Intl.NumberFormat(undefined, style).format(value);
}
