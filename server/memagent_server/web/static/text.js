// Format numbers for charts, like memagent.units on the server.

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
// Steps of an axis of bytes: powers of two up to 512 MiB, then round numbers of GiB and TiB.
const factorsOf = (unit) => (unit < 2 ** 30 ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] : [1, 2, 5, 10, 20, 50, 100, 200, 500]);
export const INCREMENTS = UNITS.flatMap(([, unit]) => factorsOf(unit).map((factor) => factor * unit)).sort((a, b) => a - b);

// Steps of an axis of steps: whole numbers.
export const STEP_INCREMENTS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((factor) => factor * 10 ** power)).flat();

export function bytes(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const [name, unit] = UNITS.find(([, size]) => Math.abs(value) >= size) ?? ["B", 1];
  const number = value / unit;
  return `${number.toFixed(unit === 1 || Math.abs(number) >= 100 ? 0 : digits)} ${name}`;
}

// Labels of an axis, in one unit: that of the largest, or a smaller one that distinguishes neighbors with two digits.
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

// Large numbers with three digits: 1.25 M, 830 k.
export function compact(value) {
  const [name, unit] = [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]].find(([, size]) => Math.abs(value) >= size) ?? ["", 1];
  return `${Number((value / unit).toPrecision(3))}${name && ` ${name}`}`;
}

// Durations: 45 s, 12 min, 3:20 h, 2 d 4 h.
export function elapsed(seconds) {
  if (seconds < 120) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds < 7200) return `${Number((seconds / 60).toPrecision(3))} min`;
  const hours = Math.floor(seconds / 3600);
  if (hours < 48) return `${hours}:${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")} h`;
  return `${Math.floor(hours / 24)} d${hours % 24 ? ` ${hours % 24} h` : ""}`;
}

// Labels of a time axis: the time of day, with the date below at the start of a day; whole days by their date.
export function clock(values, increment) {
  let day = null;
  return values.map((value) => {
    const at = new Date(value * 1000);
    const date = at.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    if (increment >= 86_400) return date;
    const time = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(increment < 60 && { second: "2-digit" }) });
    const isNew = date !== day;
    day = date;
    return isNew ? `${time}\n${date}` : time;
  });
}
