// The chart of the run page: memory over steps with limit, prediction, forecast and markers. It loads the scalars of scalars.js, too.
// A curve is a band between the minimum and maximum of its buckets, so that no spike disappears. Zooming loads the window from the
// server, down to single steps. Everything besides the series is in #chart-facts, refreshed by live.js.
import { drawForecast, drawLevels, drawMarkers, drawPhases, firstBytes } from "./marks.js";
import { axis, entry, isMove, newest, property, selection, size, whenColorsChange } from "./plot.js";
import { followForecasts } from "./forecast_history.js";
import { bindKeys } from "./keys.js";
import { savePicture } from "./picture.js";
import { RANGE, overRanks } from "./rank_band.js";
import { drawScalars, forgetScalars, readScalarView, redrawScalars, showScalarsNote } from "./scalars.js";
import { INCREMENTS, STEP_INCREMENTS, bytes, clock, count, tick } from "./text.js";
import { bind, tooltip } from "./tooltip.js";

const container = document.getElementById("memory-chart");

// In drawing order: the last one is on top. The legend is in reverse order.
const FIELDS = ["device_used_bytes", "reserved_bytes", "peak_allocated_bytes", "allocated_bytes"];
const SHORT_NAMES = { device_used_bytes: "Device used", reserved_bytes: "Reserved", peak_allocated_bytes: "Peak", allocated_bytes: "Allocated" };
const NAMES = {
  gpu: ["Device used, all processes", "Reserved by the allocator", "Peak within the step", "Allocated after the step"],
  host: ["Used on the device", "Private memory mapped", "Peak within the step", "Used after the step"],
};
const STRENGTHS = { allocated_bytes: 2, peak_allocated_bytes: 1.5, reserved_bytes: 1.25, device_used_bytes: 1.25 };
const LAST_STEPS = 200;
const BUCKET_PX = 2; // of the memory chart's whole run: a bucket is drawn from its minimum to its maximum
const SCALAR_BUCKET_PX = 6; // their charts are a third as wide
const MIN_NEW_STEPS = 0.005; // share of the chart: two to five pixels

const note = document.getElementById("chart-note");
const legend = document.getElementById("chart-legend");
const logButton = document.getElementById("scale-log");
const scaleButton = document.getElementById("scale-limit");
const resetButton = document.getElementById("zoom-reset");
const lastButton = document.getElementById("zoom-last");
const ranksButton = document.getElementById("all-ranks"); // null for a single rank
const axisButtons = [...document.querySelectorAll("#chart-tools [data-axis]")];
const pngButton = document.getElementById("save-png");
const GRID_POINTS = 240;
const MARKER_PX = 6;

let facts = readFacts();
let colors = readColors();
let zoom = readZoom(); // [from, to] in steps, or null for the whole run
let past; // the forecast of the slider, null for none; undefined while it is closed
let isByClock = new URLSearchParams(location.search).get("axis") === "time";
let isLog = new URLSearchParams(location.search).get("scale") === "log";
let isOverRanks = ranksButton !== null && new URLSearchParams(location.search).get("ranks") === "all";
let shown = null; // the newest response of the series API
let scalars = null;
let chart = null;
let toLimit = null; // null: depends on the data
let pendingRequest = null; // AbortController of the current request
const hidden = new Set();
const outputs = new Map();

// Facts, colors, window

function readFacts() {
  return JSON.parse(document.getElementById("chart-facts").dataset.facts);
}

function readColors() {
  const of = property;
  return {
    allocated_bytes: of("curve-allocated"), peak_allocated_bytes: of("curve-peak"), reserved_bytes: of("curve-reserved"),
    device_used_bytes: of("curve-device"), limit: of("curve-limit"), predicted: of("curve-predicted"), scalar: of("curve-scalar"),
    phases: [0, 1, 2, 3].map((index) => of(`phase-${index}`)),
    grid: of("grid"), muted: of("muted"), ink: of("ink"), surface: of("surface"),
    notice: of("bar-notice"), warning: of("bar-warning"), critical: of("bar-critical"), ok: of("bar-ok"), plain: of("line-strong"),
  };
}

function readZoom() {
  const params = new URLSearchParams(location.search);
  const [from, to] = [params.get("from"), params.get("to")].map((text) => (text === null ? NaN : Number(text)));
  return Number.isInteger(from) && Number.isInteger(to) && 0 <= from && from < to ? [from, to] : null;
}

function setZoom(from, to) {
  zoom = from === null ? null : [Math.max(0, from), to];
  keep({ from: zoom?.[0] ?? null, to: zoom?.[1] ?? null });
  document.dispatchEvent(new CustomEvent("memagent:window", { detail: zoom }));
  load();
}

// Store the view in the address; null removes a parameter.
function keep(parameters) {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(parameters)) {
    if (value === null) address.searchParams.delete(name);
    else address.searchParams.set(name, value);
  }
  history.replaceState(null, "", address);
}

// Data

// A run that another tracker recorded may have no memory: its chart is hidden, and has no width.
const points = (width) => Math.max(50, Math.min(1000, Math.round((container.clientWidth || document.body.clientWidth) / width)));

async function fetchSeries(parameters, url = container.dataset.seriesUrl) {
  const query = new URLSearchParams({ points: points(zoom ? 1 : BUCKET_PX), ...parameters });
  if (zoom) {
    query.set("from", zoom[0]);
    query.set("to", zoom[1]);
  }
  const response = await fetch(`${url}?${query}`, { signal: pendingRequest.signal, headers: { Accept: "application/json" } });
  if (!response.ok) throw new Error(`the server returned ${response.status}`);
  return response.json();
}

async function load() {
  if (!facts) return;
  pendingRequest?.abort();
  const request = (pendingRequest = new AbortController());
  try {
    const [memory, logged] = await Promise.all([
      isOverRanks
        ? fetchSeries({ field: "peak_allocated_bytes", points: GRID_POINTS }, container.dataset.ranksUrl).then((grid) => overRanks(grid, Number(ranksButton.dataset.evenRatio)))
        : fetchSeries({ rank: facts.rank, device: facts.device, fields: [...FIELDS, ...facts.phases.map(columnOf)].join(",") }),
      fetchSeries({ rank: facts.rank, device: "scalars", fields: "*", points: points(zoom ? BUCKET_PX : SCALAR_BUCKET_PX) }),
    ]);
    [shown, scalars] = [memory, logged];
    draw();
  } catch (error) {
    if (request.signal.aborted) return;
    if (chart) return;
    note.textContent = `The chart could not be loaded: ${error.message}.`;
    showScalarsNote(`The scalars could not be loaded: ${error.message}.`);
  }
}

const columnOf = (phase) => `phase_${phase}_peak_bytes`;

// Curves with values. On a host, some only repeat the allocated memory: draw one.
function fields() {
  if (shown.curves) return Object.keys(shown.curves);
  return FIELDS.filter((field) => newest(shown.series[field]?.max ?? []) !== undefined && !(facts.kind === "host" && isRepetition(field)));
}

function isRepetition(field) {
  const [own, floor] = [shown.series[field], shown.series.allocated_bytes].map((series) => series?.max ?? []);
  return ["device_used_bytes", "reserved_bytes"].includes(field) && own.every((value, row) => Math.abs(value - floor[row]) <= 0.01 * floor[row]);
}

function nameOf(field) {
  return shown.curves?.[field].name ?? NAMES[facts.kind === "host" ? "host" : "gpu"][FIELDS.indexOf(field)];
}

const colorOf = (field) => (shown.curves ? property(shown.curves[field].color) : colors[field]);
const swatchOf = (field) => shown.curves?.[field].swatch ?? `swatch-${field}`;

// The x axis: steps or time. The time of a step is interpolated between its neighbors in the window, or in the whole run.

function xs({ step, time_s }) {
  if (!isByClock) return step;
  let latest = newest([...time_s].reverse()) ?? 0; // the first known time
  return time_s.map((at) => (latest = Math.max(latest, at ?? latest))); // never go back, even if the clock was
}

function between(value, from, to) {
  const last = from.length - 1;
  if (last < 1) return (to[0] ?? 0) + (from.length ? value - from[0] : value);
  let place_ = from.findIndex((at) => at >= value);
  if (place_ < 0 || place_ === 0) {
    const slope = (to[last] - to[0]) / (from[last] - from[0] || 1);
    return place_ < 0 ? to[last] + slope * (value - from[last]) : to[0] + slope * (value - from[0]);
  }
  const [x0, x1] = [from[place_ - 1], from[place_]];
  return x1 === x0 ? to[place_] : to[place_ - 1] + ((to[place_] - to[place_ - 1]) * (value - x0)) / (x1 - x0);
}

const toX = (step) => (isByClock ? between(step, shown.step, xs(shown)) : step);
const toStep = (x) => (isByClock ? between(x, xs(shown), shown.step) : x);
const xRange = () => (shown ? steps().map(toX) : [0, 1]);

const xScale = () => ({ time: isByClock, range: xRange });

function xAxis(more) {
  const values = isByClock ? (_, values, __, ___, increment) => clock(values, increment) : (_, values) => values.map(count);
  return axis(() => colors, { size: isByClock ? 42 : 28, ...more, values, ...(!isByClock && { incrs: STEP_INCREMENTS }) });
}

// Ranges

function steps() {
  if (zoom) return zoom;
  const window = shown.step.length < 2 && scalars?.step.length ? scalars : shown; // a single reading has no width
  const first = window.step[0] ?? 0;
  const last = window.step.at(-1) ?? 1;
  const begin = Math.min(first, facts.first_step ?? first);
  return [begin, Math.max(begin + 1, last, forecastEnd(begin, last))];
}

// The end of the forecast's cone, unless it would squeeze the data into less than about half of the width.
function forecastEnd(begin, last) {
  const shown = forecast();
  if (!shown) return last;
  const span = Math.max(last - begin, 20);
  if (shown.eta_step > last + 0.8 * span) return shown.growth_bytes_per_step ? last + 0.25 * span : last;
  return Math.max(last, Math.min(last + 0.8 * span, (shown.eta_high ?? shown.eta_step) + 0.02 * span));
}

// That of the slider, or the newest.
const forecast = () => (past === undefined ? facts.forecast : past);

function showForecast(chosen) {
  past = chosen;
  container.dataset.forecast = chosen?.eta_step ?? "";
  container.dataset.forecastBytes = (chosen && firstBytes(chosen, facts)) ?? "";
  chart?.setData(chart.data);
}

function extremes() {
  let [low, high] = [Infinity, 0];
  for (const field of fields()) {
    if (hidden.has(field)) continue;
    for (const value of shown.series[field].min) if (value !== null && value < low) low = value;
    for (const value of shown.series[field].max) if (value !== null && value > high) high = value;
  }
  return [Math.min(low, high), high];
}

function isToLimit() {
  if (!facts.limit_bytes) return false;
  return toLimit ?? (facts.forecast !== null || extremes()[1] > 0.3 * facts.limit_bytes);
}

// A logarithmic scale has no zero: it begins at half of the smallest value.
function bytesRange() {
  const [low, high] = extremes();
  if (isLog) return [Math.max(1, low / 2), Math.max(isToLimit() ? facts.limit_bytes : 0, high) * 1.5];
  if (isToLimit()) return [0, Math.max(facts.limit_bytes, high) * 1.08];
  if (toLimit === null) return [0, Math.max(high, facts.predicted_peak_bytes ?? 0, 1) * 1.12];
  const margin = Math.max((high - low) * 0.08, high * 0.002, 1);
  return [Math.max(0, low - margin), high + margin];
}

// The memory chart

function draw() {
  const isEmpty = !shown.step.length;
  note.hidden = !isEmpty;
  if (isEmpty) note.textContent = zoom ? "No samples in this window." : "The chart appears with the first sample.";
  if (isEmpty && !chart) return;
  const columns = fields();
  const kind = [isByClock, isOverRanks, isLog, ...columns].join();
  if (chart && chart.memagentKind !== kind) {
    chart.destroy();
    chart = null;
    forgetScalars();
  }
  if (!chart) build(columns, kind);
  chart.setData([xs(shown), ...columns.flatMap((field) => [shown.series[field].max, shown.series[field].min])]);
  container.dataset.from = shown.step[0] ?? "";
  container.dataset.to = shown.step.at(-1) ?? "";
  container.dataset.samples = shown.samples;
  document.getElementById("chart-tools").hidden = false;
  resetButton.disabled = !zoom;
  pngButton.hidden = false;
  for (const button of axisButtons) button.setAttribute("aria-pressed", String((button.dataset.axis === "time") === isByClock));
  ranksButton?.setAttribute("aria-pressed", String(isOverRanks));
  ranksButton?.closest(".card-head").classList.toggle("over-ranks", isOverRanks);
  lastButton.disabled = (facts.last_step ?? 0) <= LAST_STEPS;
  scaleButton.hidden = !facts.limit_bytes;
  scaleButton.setAttribute("aria-pressed", String(isToLimit()));
  logButton.setAttribute("aria-pressed", String(isLog));
  showValues(chart.cursor.idx ?? null);
  drawScalars(scalars, { xs, xAxis, xScale, cursor, zoomToSelection, keep, colors: () => colors });
  container.shown = { range: xRange(), isByClock, zoom, last: shown.step.at(-1) };
  document.dispatchEvent(new CustomEvent("memagent:shown"));
}

function build(columns, kind) {
  const series = columns.flatMap((field) => [line(field, 1), line(field, 0.6)]);
  const bands = columns.map((field, index) => ({ series: [2 * index + 1, 2 * index + 2], fill: () => `${colorOf(field)}55` }));
  const [floor, peak] = [columns.indexOf("allocated_bytes"), columns.indexOf("peak_allocated_bytes")];
  if (floor >= 0 && peak >= 0) bands.push({ series: [2 * peak + 2, 2 * floor + 1], fill: () => `${colors.peak_allocated_bytes}14` });
  chart = new uPlot(
    {
      ...size(container),
      padding: [14, 26, 0, 0],
      legend: { show: false },
      cursor: cursor(),
      scales: { x: xScale(), y: { range: bytesRange, ...(isLog && { distr: 3, log: 2 }) } },
      axes: [
        xAxis({}),
        axis(() => colors, isLog ? { size: 66, splits: (_, __, low, high) => powers(low, high), values: (_, values) => values.map((value) => bytes(value, 0)) } : { size: 66, incrs: INCREMENTS, values: (_, values, __, ___, increment) => values.map((value) => tick(value, increment, values.at(-1))) }),
      ],
      series: [{}, ...series],
      bands,
      plugins: [tooltip(describe)],
      hooks: {
        drawAxes: [(u) => drawForecast(u, { ...facts, forecast: forecast() }, colors, toX)],
        draw: [(u) => drawLevels(u, facts, colors), (u) => drawMarkers(u, facts, colors, toX), (u) => drawPhases(u, phaseSteps(), colors, toX)],
        setSelect: [zoomToSelection],
        setCursor: [(u) => showValues(u.cursor.idx)],
      },
    },
    [[], ...series.map(() => [])],
    container,
  );
  chart.memagentKind = kind;
  container.dataset.drawn = "true";
  const canvas = container.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Memory; the text below the chart tells its figures");
  buildLegend(columns);
}

// The steps that had each phase; the last one of a bucket represents the bucket.
function phaseSteps() {
  return facts.phases.map((phase) => shown.step.filter((_, row) => (shown.series[columnOf(phase)]?.max[row] ?? null) !== null));
}

function line(field, strength) {
  const width = shown.curves?.[field].width ?? STRENGTHS[field] * strength;
  return { stroke: () => colorOf(field), width, points: { show: false }, spanGaps: true, show: !hidden.has(field) };
}

function cursor() {
  return {
    y: false,
    points: { size: 6, show: (u, index) => (index % 2 ? undefined : false) },
    drag: { x: true, y: false, setScale: false },
    sync: { key: "memagent", setSeries: false, scales: ["x", null], filters: { pub: isMove, sub: isMove } },
    bind: { ...bind, dblclick: () => () => zoom && setZoom(null) },
  };
}

function zoomToSelection(u) {
  const selected = selection(u);
  if (selected) zoomToX(...selected);
}

// The first step of a row: those of a bucket end at the step where it is drawn.
function beginOf(row, step = shown.step[row]) {
  if (!shown.bucketed || row < 0) return step;
  return row > 0 ? shown.step[row - 1] + 1 : Math.min(step, zoom?.[0] ?? facts.first_step ?? step);
}

// Zoom to values of x; to the whole run from null, or from a window that holds all of it.
function zoomToX(from, to) {
  if (from === null) return zoom && setZoom(null);
  const [at, last] = [Math.floor(toStep(from)), Math.ceil(toStep(to))];
  const first = Math.min(at, beginOf(shown.step.findIndex((step) => step >= at), at));
  const isWhole = first <= (facts.first_step ?? 0) && last >= facts.last_step;
  if (isWhole) return zoom && setZoom(null);
  const begin = Math.max(0, Math.min(first, facts.last_step - 2));
  setZoom(begin, Math.max(Math.min(last, facts.last_step), begin + 2));
}

// The legend: one button per curve, with the value at the cursor or the newest one

function buildLegend(columns) {
  outputs.clear();
  const entries = columns.map((field) => {
    const button = entry("button", swatchOf(field), nameOf(field));
    button.type = "button";
    button.setAttribute("aria-pressed", String(!hidden.has(field)));
    button.append(valueOf(field));
    button.addEventListener("click", () => toggle(field, columns.indexOf(field), button));
    return button;
  });
  const where = entry("span", null, "Step");
  where.append(valueOf("step"));
  legend.replaceChildren(where, ...entries.reverse());
  if (facts.predicted_peak_bytes) legend.append(entry("span", "swatch-predicted dashed", "Predicted peak"));
  if (facts.limit_bytes) legend.append(entry("span", "swatch-limit dashed", "Limit"));
  facts.phases.forEach((phase, index) => !isOverRanks && legend.append(entry("span", `swatch-phase-${index} dashed`, phase.replaceAll("_", " "))));
  const forecastName = facts.is_running ? "Forecast" : "First warning's forecast";
  if (isForecastInSight()) legend.append(entry("span", `swatch-forecast tone-${facts.forecast.level} dashed`, forecastName));
}

// Without growth there is only a date, which may be outside the chart.
function isForecastInSight() {
  const forecast = facts.forecast;
  return forecast !== null && (forecast.growth_bytes_per_step !== null || forecast.eta_step <= steps()[1]);
}

function valueOf(field) {
  const element = document.createElement("span");
  element.className = "value";
  outputs.set(field, element);
  return element;
}

function toggle(field, index, button) {
  if (!hidden.delete(field)) hidden.add(field);
  button.setAttribute("aria-pressed", String(!hidden.has(field)));
  chart.setSeries(2 * index + 1, { show: !hidden.has(field) });
  chart.setSeries(2 * index + 2, { show: !hidden.has(field) });
  chart.redraw(true, true);
}

function legendWords() {
  return fields().filter((field) => !hidden.has(field)).reverse().map((field) => ({ text: nameOf(field), color: colorOf(field) }));
}

// The labels of a logarithmic axis: uPlot rounds its own to six digits.
function powers(low, high) {
  const first = Math.ceil(Math.log2(low));
  return Array.from({ length: Math.floor(Math.log2(high)) - first + 1 }, (_, place) => 2 ** (first + place));
}

const valueAt = (field, row) => shown.series[field][field === "peak_allocated_bytes" ? "max" : "last"][row];

function textAt(field, row) {
  const { min, max } = shown.series[field];
  return field === RANGE && min[row] !== null ? `${bytes(min[row])} to ${bytes(max[row])}` : bytes(valueAt(field, row));
}

// What the tooltip says of a row: the curves in the order of the screen, their shares of the limit, and what happened there.
function describe(row, u) {
  const step = shown.step[row];
  const share = (value) => (facts.limit_bytes ? `${Math.round((100 * value) / facts.limit_bytes)} %` : "");
  const rows = fields().filter((field) => !hidden.has(field)).reverse().map((field) => {
    const value = valueAt(field, row);
    return { swatch: swatchOf(field), name: shown.curves ? nameOf(field) : SHORT_NAMES[field], value: textAt(field, row), note: value === null ? "" : share(value) };
  });
  const begin = beginOf(row);
  const title = begin < step ? `Steps ${count(begin)} to ${count(step)}` : undefined;
  return { step, title, time_s: shown.time_s[row], rows, notes: happenings(row, u) };
}

// The markers at the cursor, and the phases of its steps.
function happenings(row, u) {
  const isHere = ({ step }) => Math.abs(u.valToPos(toX(step), "x") - u.cursor.left) <= MARKER_PX;
  const marked = facts.markers.filter(isHere).map(({ label, step }) => `${label} at step ${count(step)}`);
  const phases = facts.phases.filter((phase) => (shown.series[columnOf(phase)]?.max[row] ?? null) !== null);
  return [...new Set([...marked, ...phases.map((phase) => phase.replaceAll("_", " "))])];
}

function showValues(index) {
  const at = index ?? shown.step.length - 1;
  for (const [field, output] of outputs) {
    const values = field === "step" ? null : shown.series[field];
    output.textContent = !values ? count(shown.step[at] ?? 0) : textAt(field, at);
  }
}

// Events

// New steps are loaded once they are wide enough to be seen, and with every other change.
function isWorthLoading(before) {
  const last = shown?.step.at(-1);
  if (!before || last === undefined || before.is_running !== facts.is_running) return true;
  const [begin, end] = steps();
  return facts.last_step - last >= MIN_NEW_STEPS * (end - begin) || !facts.is_running;
}

function redraw() {
  chart?.redraw(true, true);
  redrawScalars();
}

document.addEventListener("memagent:refreshed", () => {
  const before = facts;
  facts = readFacts();
  if (!facts || (shown && JSON.stringify(before) === JSON.stringify(facts))) return;
  if (chart) {
    buildLegend(fields());
    showValues(chart.cursor.idx ?? null);
  }
  const isBehindUs = zoom && shown && zoom[1] < (before?.last_step ?? 0);
  if (isBehindUs || !isWorthLoading(before)) redraw();
  else load();
});
function scaleToLimit() {
  toLimit = !isToLimit();
  scaleButton.setAttribute("aria-pressed", String(toLimit));
  chart.setData(chart.data);
}

function scaleByLogarithm() {
  isLog = !isLog;
  keep({ scale: isLog ? "log" : null });
  if (shown) draw();
}

scaleButton.addEventListener("click", scaleToLimit);
logButton.addEventListener("click", scaleByLogarithm);
followForecasts({ facts: () => facts, show: showForecast, hide: () => showForecast(undefined) });
bindKeys(container, { chart: () => chart, zoomTo: zoomToX, toggles: { l: scaleByLogarithm, m: scaleToLimit } });
document.addEventListener("memagent:zoom", ({ detail }) => (detail ? setZoom(...detail) : zoom && setZoom(null)));
resetButton.addEventListener("click", () => setZoom(null));
for (const button of axisButtons) {
  button.addEventListener("click", () => {
    isByClock = button.dataset.axis === "time";
    keep({ axis: isByClock ? "time" : null });
    if (shown) draw();
  });
}
ranksButton?.addEventListener("click", () => {
  isOverRanks = !isOverRanks;
  keep({ ranks: isOverRanks ? "all" : null });
  load();
});
pngButton.addEventListener("click", () => savePicture(container.querySelector("canvas"), pngButton.dataset, legendWords(), { ink: colors.ink, surface: colors.surface }));
lastButton.addEventListener("click", () => setZoom(facts.last_step - LAST_STEPS, facts.last_step));
whenColorsChange(() => {
  colors = readColors();
  redraw();
});
new ResizeObserver(() => chart?.setSize(size(container))).observe(container);
readScalarView();
load();
