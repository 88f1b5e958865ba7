// Numbers as people read them on a chart; memagent.units does the same on the server.

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
// Distances between the lines of an axis: powers of two up to 512 MiB, then round numbers of GiB and TiB.
const factorsOf = (unit) => (unit < 2 ** 30 ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] : [1, 2, 5, 10, 20, 50, 100, 200, 500]);
export const INCREMENTS = UNITS.flatMap(([, unit]) => factorsOf(unit).map((factor) => factor * unit)).sort((a, b) => a - b);

export function bytes(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const [name, unit] = UNITS.find(([, size]) => Math.abs(value) >= size) ?? ["B", 1];
  const number = value / unit;
  return `${number.toFixed(unit === 1 || Math.abs(number) >= 100 ? 0 : digits)} ${name}`;
}

// Axis labels: all in one unit, that of the largest or a smaller one that tells neighbours apart with two digits.
export function tick(value, increment, largest) {
  if (value === 0) return "0";
  const isFine = (unit) => (4 * increment) % unit === 0;
  const [name, unit] = UNITS.find(([, size]) => largest >= size && isFine(size)) ?? UNITS.at(-1);
  const digits = increment % unit === 0 ? 0 : (2 * increment) % unit === 0 ? 1 : 2;
  return `${(value / unit).toFixed(digits)} ${name}`;
}

export const count = (value) => Math.round(value).toLocaleString("en-US");
export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size >= 1e5 || (size > 0 && size < 1e-4) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}
