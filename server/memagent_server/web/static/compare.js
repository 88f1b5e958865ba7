// The chart of the compare page: one curve per run, aligned by step, by time since the run's first sample, or by tokens if a
// scalar counts them. The address contains curve and alignment (?curve=, ?by=). Zooming loads each run's part of the window.
import { axis, entry, isMove, property, selection, size, whenColorsChange } from "./plot.js";
import { INCREMENTS, STEP_INCREMENTS, bytes, compact, count, elapsed, short, tick } from "./text.js";
import { bindKeys } from "./keys.js";
import { bind, tooltip } from "./tooltip.js";

const container = document.getElementById("compare-chart");
const note = document.getElementById("chart-note");
const legend = document.getElementById("compare-legend");
const curvesNote = document.getElementById("curves-note");
const select = document.getElementById("curve");
const buttons = [...document.querySelectorAll("#compare-tools [data-by]")];
const resetButton = document.getElementById("zoom-reset");
const relativeButton = document.getElementById("relative");
const ALIGNMENTS = { step: "step", time: "time since the first sample", tokens: "tokens" };

let runs = readRuns();
let colors = readColors();
let by = readChoice("by", buttons.map((button) => button.dataset.by));
let curve = readChoice("curve", [...select.options].map((option) => option.value));
let zoom = null; // [from, to] on the x axis, or null for all
let isRelative = new URLSearchParams(location.search).get("relative") === "1"; // to the first run
let loaded = new Map(); // run id -> { x, y, step }
let tables = new Map(); // the same as drawn: without those of the first run, if relative
let whole = new Map(); // the same for the whole run, to convert a zoom between alignments
let chart = null;
let pendingRequest = null;
const starts = new Map(); // run id -> time of its first sample
const hidden = new Set();
const outputs = new Map();

// Parameters of the address

function readRuns() {
  return JSON.parse(document.getElementById("compare-facts").dataset.facts);
}

function readColors() {
  const tones = Array.from({ length: 10 }, (_, tone) => property(`run-${tone}`));
  return { tones, grid: property("grid"), muted: property("muted") };
}

function readChoice(name, options) {
  const value = new URLSearchParams(location.search).get(name);
  return options.includes(value) ? value : options[0];
}

function keep(name, value, first) {
  const address = new URL(location.href);
  if (value === first) address.searchParams.delete(name);
  else address.searchParams.set(name, value);
  history.replaceState(null, "", address.href.replaceAll("%2C", ","));
}

// Data

const scalar = () => (curve.startsWith("scalar:") ? curve.slice(7) : null);
const isBytes = () => curve.endsWith("_bytes") && !scalar();

async function fetchSeries(run, parameters, signal) {
  const points = Math.max(50, Math.min(runs.length > 5 ? 400 : 1000, container.clientWidth));
  const query = new URLSearchParams({ points, ...parameters });
  const response = await fetch(`${container.dataset.runsUrl}/${encodeURIComponent(run.id)}/series?${query}`, { signal, headers: { Accept: "application/json" } });
  if (!response.ok) throw new Error(`the server returned ${response.status}`);
  return response.json();
}

async function table(run, signal) {
  const window = zoom ? stepsOf(run) : {};
  if (run.rank === null || window === null) return { x: [], y: [], step: [] };
  const name = scalar() ?? curve;
  const logged = { rank: 0, device: "scalars", ...window };
  const asked = scalar()
    ? fetchSeries(run, { ...logged, fields: [name, by === "tokens" && run.tokens_scalar].filter(Boolean).join(",") }, signal)
    : fetchSeries(run, { rank: run.rank, device: run.device, fields: name, ...window }, signal);
  const counted = by === "tokens" && run.tokens_scalar && !scalar() ? fetchSeries(run, { ...logged, fields: run.tokens_scalar }, signal) : asked;
  const [shown, tokens] = await Promise.all([asked, counted]);
  const values = shown.series[name]?.[scalar() ? "last" : "max"] ?? [];
  const x = positions(run, shown, tokens);
  const rows = x.map((at, row) => [at, values[row] ?? null, shown.step[row]]).filter(([at, value]) => at !== null && value !== null);
  rows.sort((a, b) => a[0] - b[0]);
  return { x: rows.map((row) => row[0]), y: rows.map((row) => row[1]), step: rows.map((row) => row[2]) };
}

// The x positions of samples; null if unknown.
function positions(run, shown, tokens) {
  if (by === "step") return shown.step;
  if (by === "time") {
    if (!zoom) starts.set(run.id, shown.time_s[0]);
    const start = starts.get(run.id);
    return shown.time_s.map((at) => (at === null ? null : at - start));
  }
  if (!run.tokens_scalar) return shown.step.map(() => null);
  const known = tokens.series[run.tokens_scalar].last.map((value, row) => [tokens.step[row], value]).filter(([, value]) => value !== null);
  return shown.step.map((step) => between(known, step));
}

// The value at `at` on a line through [x, y] points with increasing x; null outside.
function between(points, at) {
  if (!points.length || at < points[0][0] || at > points.at(-1)[0]) return null;
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= at) low = middle;
    else high = middle;
  }
  const [[x0, y0], [x1, y1]] = [points[low], points[high]];
  return x1 === x0 ? y0 : y0 + ((y1 - y0) * (at - x0)) / (x1 - x0);
}

// The steps of a run in the zoomed window, plus one on either side; null if there are none.
function stepsOf(run) {
  if (by === "step") return { from: Math.max(0, Math.floor(zoom[0])), to: Math.ceil(zoom[1]) };
  const { x, step } = whole.get(run.id) ?? { x: [], step: [] };
  const first = x.findIndex((at) => at >= zoom[0]);
  const last = x.findLastIndex((at) => at <= zoom[1]);
  if (!x.length || first < 0 || last < 0) return null;
  return { from: step[Math.max(0, first - 1)], to: step[Math.min(step.length - 1, last + 1)] };
}

async function load() {
  pendingRequest?.abort();
  const request = (pendingRequest = new AbortController());
  try {
    const newest = await Promise.all(runs.map((run) => table(run, request.signal)));
    if (request.signal.aborted) return;
    loaded = new Map(runs.map((run, index) => [run.id, newest[index]]));
    if (!zoom) whole = loaded;
    draw();
  } catch (error) {
    if (request.signal.aborted) return;
    note.hidden = false;
    note.textContent = `The curves could not be loaded: ${error.message}.`;
  }
}

// The chart

function draw() {
  const baseline = loaded.get(runs[0].id);
  tables = isRelative ? new Map([...loaded].map(([id, table]) => [id, difference(table, baseline)])) : loaded;
  relativeButton.setAttribute("aria-pressed", String(isRelative));
  const drawn = runs.filter((run) => tables.get(run.id).x.length);
  note.hidden = drawn.length > 0;
  note.textContent = zoom ? "No samples in this window." : "No run has values for this curve.";
  chart?.destroy();
  chart = build();
  chart.setData(uPlot.join(runs.map((run) => [tables.get(run.id).x, tables.get(run.id).y])));
  document.getElementById("compare-tools").hidden = false;
  resetButton.disabled = !zoom;
  select.value = curve;
  for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.by === by));
  Object.assign(container.dataset, { drawn: drawn.length, by, curve, from: zoom?.[0] ?? "", to: zoom?.[1] ?? "" });
  const missing = runs.filter((run) => !tables.get(run.id).x.length).map((run) => run.name);
  const left = missing.length && !zoom ? ` Not drawn, because they have no values: ${missing.join(", ")}.` : "";
  const what = isRelative ? `Difference from ${runs[0].name}, by` : "By";
  curvesNote.textContent = `${what} ${ALIGNMENTS[by]}, of ${scalar() ? "rank 0" : "the fullest rank"}.${left}`;
  showValues(null);
}

// A run minus the baseline, where both have values.
function difference({ x, y, step }, baseline) {
  const points = baseline.x.map((at, row) => [at, baseline.y[row]]);
  const rows = x.map((at, row) => [at, between(points, at), row]).filter(([, value]) => value !== null);
  return { x: rows.map(([at]) => at), y: rows.map(([, value, row]) => y[row] - value), step: rows.map(([, , row]) => step[row]) };
}

function build() {
  const plot = new uPlot(
    {
      ...size(container),
      padding: [14, 26, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false, setScale: false }, bind: { ...bind, dblclick: () => () => zoomTo(null) }, sync: { filters: { pub: isMove, sub: isMove } } },
      scales: { x: { time: false, range: xRange }, y: { range: yRange } },
      axes: [
        axis(() => colors, { size: 28, values: (_, values) => values.map(xText), incrs: by === "time" ? SPANS : STEP_INCREMENTS }),
        isBytes()
          ? axis(() => colors, { size: 66, incrs: INCREMENTS, values: (_, values, __, ___, increment) => values.map((value) => tick(value, increment, Math.max(...values.map(Math.abs)))) })
          : axis(() => colors, { size: 66, values: (_, values) => values.map(short) }),
      ],
      series: [{}, ...runs.map((run) => ({
        stroke: () => colors.tones[run.tone], width: 1.75, dash: run.dashed ? [6, 4] : undefined, points: { show: false }, spanGaps: true, show: !hidden.has(run.id),
      }))],
      plugins: [tooltip(describe)],
      hooks: { setSelect: [(u) => zoomTo(selection(u) ?? zoom)], setCursor: [(u) => showValues(u.cursor.idx)] },
    },
    [[], ...runs.map(() => [])],
    container,
  );
  const canvas = container.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Curves of the runs; the tables on this page tell their figures");
  buildLegend();
  return plot;
}

// Steps of a time axis, in seconds.
const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000];

function xText(value) {
  return by === "time" ? elapsed(value) : by === "tokens" ? compact(value) : count(value);
}

function xRange(_, low, high) {
  if (zoom) return zoom;
  return low === null ? [0, 1] : [Math.min(0, low), high > low ? high : low + 1];
}

function yRange(_, low, high) {
  if (low === null) return [0, 1];
  if (isBytes() && !isRelative) return [0, high * 1.08 || 1];
  const margin = (high - low || Math.abs(high) || 1) * 0.08;
  if (isRelative) return [Math.min(0, low) - margin, Math.max(0, high) + margin];
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

function zoomTo(window) {
  if (window === zoom) return;
  zoom = window;
  load();
}

// The legend: one button per run, with the value at the cursor or the newest one

function buildLegend() {
  outputs.clear();
  const where = entry("span", null, by === "step" ? "Step" : by === "time" ? "After" : "Tokens");
  where.append(output(null));
  legend.replaceChildren(where, ...runs.map((run, index) => {
    const button = entry("button", `run-${run.tone}${run.dashed ? " dashed" : ""}`, run.name);
    button.type = "button";
    button.setAttribute("aria-pressed", String(!hidden.has(run.id)));
    button.append(output(run.id));
    button.addEventListener("click", () => {
      if (!hidden.delete(run.id)) hidden.add(run.id);
      button.setAttribute("aria-pressed", String(!hidden.has(run.id)));
      chart.setSeries(index + 1, { show: !hidden.has(run.id) });
    });
    return button;
  }));
}

function output(id) {
  const element = document.createElement("span");
  element.className = "value";
  outputs.set(id, element);
  return element;
}

function showValues(index) {
  const at = index === null || index === undefined ? Infinity : chart.data[0][index];
  outputs.get(null).textContent = at === Infinity ? "newest" : xText(at);
  for (const run of runs) outputs.get(run.id).textContent = valueText(valueOf(run, at));
}

function valueText(value) {
  const text = isBytes() ? bytes(value) : short(value);
  return isRelative && value > 0 ? `+${text}` : text.replace("-", "−");
}

function valueOf(run, at) {
  const { x, y } = tables.get(run.id);
  const row = x.findLastIndex((value) => value <= at);
  return row < 0 || (at !== Infinity && at > x.at(-1)) ? null : y[row];
}

// The runs at the cursor, the largest value first.
function describe(row) {
  const at = chart.data[0][row];
  const values = runs.filter((run) => !hidden.has(run.id)).map((run) => [run, valueOf(run, at)]).filter(([, value]) => value !== null);
  values.sort(([, a], [, b]) => b - a);
  const rows = values.map(([run, value]) => ({ swatch: `run-${run.tone}`, name: run.name, value: valueText(value) }));
  return rows.length ? { title: `${by === "time" ? "After " : ""}${xText(at)}${by === "time" ? "" : ` ${by === "step" ? "steps" : "tokens"}`}`, rows } : null;
}

// Events

for (const button of buttons) {
  button.addEventListener("click", () => {
    [by, zoom] = [button.dataset.by, null];
    keep("by", by, buttons[0].dataset.by);
    load();
  });
}
select.addEventListener("change", () => {
  [curve, zoom] = [select.value, null];
  keep("curve", curve, select.options[0].value);
  load();
});
resetButton.addEventListener("click", () => zoomTo(null));
relativeButton.addEventListener("click", () => {
  isRelative = !isRelative;
  keep("relative", isRelative ? "1" : "", "");
  draw();
});
// Another baseline keeps the view.
document.addEventListener("click", ({ target }) => {
  const link = target.closest?.("a.baseline");
  if (!link) return;
  const address = new URL(link.href);
  for (const name of ["by", "curve", "relative"]) {
    const value = new URLSearchParams(location.search).get(name);
    if (value) address.searchParams.set(name, value);
  }
  link.href = address.href.replaceAll("%2C", ",");
});
bindKeys(container, { chart: () => chart, zoomTo: (from, to) => zoomTo(from === null ? null : [Math.max(0, from), to]) });
document.addEventListener("memagent:refreshed", () => {
  const before = JSON.stringify(runs);
  const newRuns = readRuns();
  if (JSON.stringify(newRuns) === before || zoom) return;
  runs = newRuns;
  load();
});
whenColorsChange(() => {
  colors = readColors();
  if (chart) draw();
});
new ResizeObserver(() => chart?.setSize(size(container))).observe(container);
load();
