// Memory by component over steps, stacked up to the peak of each step. The rest is "other tensors": if it grows from step to step,
// something is keeping tensors alive. The chart shows the window and axis of the memory chart (run.js stores both on its element),
// and loads its data only when it is about to scroll into view.
import { axis, entry, isMove, property, selection, size, whenColorsChange } from "./plot.js";
import { INCREMENTS, STEP_INCREMENTS, bytes, clock, count, tick } from "./text.js";
import { bind, tooltip } from "./tooltip.js";

const container = document.getElementById("stack-chart");
const memory = document.getElementById("memory-chart");
const note = document.getElementById("stack-note");
const legend = document.getElementById("stack-legend");
const REFRESH_S = 10; // for a running run; slower than the memory chart above it
const OTHER = "other";

let grid = null;
let layers = []; // {name, values}, from bottom to top
let chart = null;
let isNear = false;
let requestedAt = -Infinity;
let requestedKey = null;
let pendingRequest = null;

const facts = () => JSON.parse(document.getElementById("chart-facts").dataset.facts);
const shown = () => memory.shown; // {range, isByClock, zoom, last}, from run.js
const isRead = (name) => name !== OTHER;
const colorOf = (name) => property(`part-${name}`);

// Data

async function load() {
  if (!isNear || !shown()) return;
  const { zoom, last, isByClock, range } = shown();
  const key = JSON.stringify([zoom, isByClock]);
  if (key === requestedKey && (last === grid?.last || performance.now() - requestedAt < REFRESH_S * 1000)) return fit(range);
  [requestedAt, requestedKey] = [performance.now(), key];
  pendingRequest?.abort();
  const request = (pendingRequest = new AbortController());
  try {
    const { rank, device } = facts();
    const names = container.dataset.parts.split(",");
    const query = new URLSearchParams({ rank, device, points: Math.max(50, Math.min(500, Math.round(container.clientWidth / 2))) });
    query.set("fields", ["peak_allocated_bytes", ...names.filter(isRead).map((name) => `${name}_bytes`)].join(","));
    if (zoom) for (const [name, step] of [["from", zoom[0]], ["to", zoom[1]]]) query.set(name, step);
    const response = await fetch(`${memory.dataset.seriesUrl}?${query}`, { signal: request.signal, headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(`the server returned ${response.status}`);
    grid = { ...(await response.json()), last };
    layers = stack(names);
    draw();
  } catch (error) {
    if (!request.signal.aborted && !chart) note.textContent = `The components could not be loaded: ${error.message}.`;
  }
}

// A step without a peak has no column. Activations are temporary, so they are on top. A column of several steps shows the one with
// the highest peak.
function stack(names) {
  const peaks = grid.series.peak_allocated_bytes.max;
  const of = (name) => grid.series[`${name}_bytes`][name === "activations" ? "max" : "last"];
  const parts = names.filter(isRead).map((name) => ({ name, values: peaks.map((peak, row) => (peak === null ? null : (of(name)[row] ?? 0))) }));
  const rest = peaks.map((peak, row) => (peak === null ? null : Math.max(0, peak - parts.reduce((sum, { values }) => sum + values[row], 0))));
  return names.map((name) => parts.find((part) => part.name === name) ?? { name, values: rest });
}

function edges() {
  let below = grid.step.map(() => 0);
  return layers.map(({ values }) => (below = values.map((value, row) => (value === null ? null : value + below[row]))));
}

function xs() {
  if (!shown().isByClock) return grid.step;
  let latest = grid.time_s.find((at) => at !== null) ?? 0;
  return grid.time_s.map((at) => (latest = Math.max(latest, at ?? latest)));
}

// Drawing

function draw() {
  note.hidden = grid.step.length > 0;
  note.textContent = "No samples in this window.";
  const kind = [shown().isByClock, ...layers.map(({ name }) => name)].join();
  if (chart?.memagentKind !== kind) {
    chart?.destroy();
    chart = build(kind);
  }
  chart.setData([xs(), ...edges()]);
  showValues(null);
  container.dataset.drawn = layers.map(({ name }) => name).join();
}

function fit() {
  chart?.setData(chart.data);
}

function build(kind) {
  const isByClock = shown().isByClock;
  const values = isByClock ? (_, values, __, ___, increment) => clock(values, increment) : (_, values) => values.map(count);
  const colors = () => ({ muted: property("muted"), grid: property("grid") });
  const plot = new uPlot(
    {
      ...size(container),
      padding: [10, 26, 0, 0],
      legend: { show: false },
      cursor: {
        y: false, points: { show: false }, drag: { x: true, y: false, setScale: false },
        sync: { key: "memagent", setSeries: false, scales: ["x", null], filters: { pub: isMove, sub: isMove } },
        bind: { ...bind, dblclick: () => () => zoomTo(null) },
      },
      scales: { x: { time: isByClock, range: () => shown().range }, y: { range: (_, __, high) => [0, (high || 1) * 1.06] } },
      axes: [
        axis(colors, { size: isByClock ? 42 : 28, values, ...(!isByClock && { incrs: STEP_INCREMENTS }) }),
        axis(colors, { size: 66, incrs: INCREMENTS, values: (_, values, __, ___, increment) => values.map((value) => tick(value, increment, values.at(-1))) }),
      ],
      series: [{}, ...layers.map(({ name }) => ({ stroke: () => colorOf(name), width: 1, points: { show: false }, fill: () => `${colorOf(name)}b3` }))],
      bands: layers.slice(1).map(({ name }, below) => ({ series: [below + 2, below + 1], fill: () => `${colorOf(name)}b3` })),
      plugins: [tooltip(describe)],
      hooks: { setSelect: [zoomToSelection], setCursor: [(u) => showValues(u.cursor.idx)] },
    },
    [[], ...layers.map(() => [])],
    container,
  );
  plot.memagentKind = kind;
  const canvas = container.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Components of the memory, stacked; the table of components has their figures");
  return plot;
}

function zoomToSelection(u) {
  const selected = selection(u);
  if (!selected) return;
  const at = xs();
  const rowOf = (x) => at.reduce((best, value, row) => (Math.abs(value - x) < Math.abs(at[best] - x) ? row : best), 0);
  const [from, to] = selected.map((x) => grid.step[rowOf(x)]);
  zoomTo([from, Math.max(to, from + 2)]);
}

function zoomTo(steps) {
  document.dispatchEvent(new CustomEvent("memagent:zoom", { detail: steps }));
}

// The legend and the tooltip: from top to bottom, like the layers

const nameOf = (name) => (name === OTHER ? "other tensors" : name.replaceAll("_", " "));

function describe(row) {
  const peak = grid.series.peak_allocated_bytes.max[row];
  if (peak === null) return null;
  const share = (value) => (peak ? `${Math.round((100 * value) / peak)} %` : "");
  const rows = [...layers].reverse().map(({ name, values }) => ({ swatch: `swatch-part-${name}`, name: nameOf(name), value: bytes(values[row]), note: share(values[row]) }));
  return { step: grid.step[row], time_s: grid.time_s[row], rows, notes: [`peak ${bytes(peak)}`] };
}

function showValues(index) {
  const at = index ?? grid.step.length - 1;
  const entries = [...layers].reverse().map(({ name, values }) => {
    const item = entry("span", `swatch-part-${name}`, nameOf(name));
    item.append(Object.assign(document.createElement("span"), { className: "value", textContent: bytes(values[at]) }));
    return item;
  });
  const where = entry("span", null, "Step");
  where.append(Object.assign(document.createElement("span"), { className: "value", textContent: count(grid.step[at] ?? 0) }));
  legend.replaceChildren(where, ...entries);
}

document.addEventListener("memagent:shown", load);
whenColorsChange(() => chart?.redraw(true, true));
new ResizeObserver(() => chart?.setSize(size(container))).observe(container);
new IntersectionObserver(
  (entries) => {
    isNear = entries.at(-1).isIntersecting; // fast scrolling reports several entries at once
    load();
  },
  { rootMargin: "300px" },
).observe(container);
