// The charts of the user's scalars, on the window and axis of the memory chart, with smoothing and a logarithmic scale.
import { axis, newest, size } from "./plot.js";
import { short } from "./text.js";
import { tooltip } from "./tooltip.js";

const MAX_SCALARS = 24;
const FIRST = ["loss", "train_loss", "train/loss", "eval_loss", "eval/loss", "val_loss"]; // what people look for

const section = document.getElementById("scalars");
const area = document.getElementById("scalar-charts");
const smoothing = document.getElementById("smoothing");
const logButton = document.getElementById("scalars-log");
const charts = new Map(); // name -> {plot, output}
let shown = null; // the newest response of the series API
let view = null; // {xs, xAxis, xScale, cursor, zoomToSelection, keep, colors}, from run.js
let weight = 0; // of the mean so far, at each point
let isLog = false;

export function readScalarView() {
  const query = new URLSearchParams(location.search);
  weight = Math.min(0.99, Math.max(0, Number(query.get("smooth")) || 0));
  isLog = query.get("scalars") === "log";
  smoothing.value = String(Math.round(100 * weight));
  logButton.setAttribute("aria-pressed", String(isLog));
}

export function drawScalars(scalars, of) {
  [shown, view] = [scalars, of];
  const isLogged = (name) => newest(shown.series[name].last) !== undefined;
  const names = Object.keys(shown.series).filter(isLogged).sort(byInterest).slice(0, MAX_SCALARS);
  section.hidden = !names.length && !charts.size;
  if (!charts.size) area.replaceChildren();
  for (const name of names) if (!charts.has(name)) charts.set(name, build(name));
  for (const [name, { plot }] of charts) fill(name, plot);
}

// What stands there until the first scalars do.
export function showScalarsNote(text) {
  area.replaceChildren(Object.assign(document.createElement("p"), { className: "muted", textContent: text }));
}

export function redrawScalars() {
  for (const { plot } of charts.values()) plot.redraw(true, true);
}

export function forgetScalars() {
  for (const { plot } of charts.values()) plot.destroy();
  area.replaceChildren();
  charts.clear();
}

function byInterest(a, b) {
  const place = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  return place(a) - place(b) || (a < b ? -1 : 1);
}

function valuesOf(name) {
  return shown.series[name] ?? { min: [], max: [], last: [] };
}

function fill(name, plot) {
  const { min, max, last } = valuesOf(name);
  plot.setData([view.xs(shown), max, min, last, weight ? smoothed(last) : last.map(() => null)]);
  charts.get(name) && showValue(name, plot);
}

// An exponential mean that isn't drawn to zero at its beginning, as in TensorBoard.
function smoothed(values) {
  let [mean, total] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}

function showValue(name, plot) {
  const last = valuesOf(name).last;
  charts.get(name).output.textContent = short(plot.cursor.idx == null ? newest(last) : last[plot.cursor.idx]);
}

function build(name) {
  const box = document.createElement("article");
  box.className = "scalar-chart";
  const title = document.createElement("h3");
  const output = document.createElement("span");
  const place = Object.assign(document.createElement("div"), { className: "plot" });
  title.append(name, output);
  box.append(title, place);
  area.append(box);
  const plot = new uPlot(options(name, place), [[], [], [], [], []], place);
  new ResizeObserver(() => plot.setSize(size(place))).observe(place);
  return { plot, output };
}

function options(name, place) {
  const curve = (width, alpha) => ({ stroke: () => `${view.colors().scalar}${alpha()}`, width, points: { show: false }, spanGaps: true });
  const raw = () => (weight ? "66" : "");
  return {
    ...size(place),
    padding: [8, 26, 0, 0],
    legend: { show: false },
    cursor: { ...view.cursor(), points: { size: 5, show: (u, index) => (index === 3 ? undefined : false) } },
    scales: { x: view.xScale(), y: isLog ? { distr: 3, log: 10 } : {} },
    axes: [view.xAxis({ space: 70 }), axis(view.colors, { size: 66, values: (_, values) => values.map((value) => (value == null ? "" : short(value))), space: 34 })],
    series: [{}, curve(0, raw), curve(0, raw), curve(1.5, raw), curve(2, () => "")],
    bands: [{ series: [1, 2], fill: () => `${view.colors().scalar}40` }],
    plugins: [tooltip((row) => describe(name, row))],
    hooks: { setSelect: [view.zoomToSelection], setCursor: [(u) => charts.has(name) && showValue(name, u)] },
  };
}

function describe(name, row) {
  const { min, max, last } = valuesOf(name);
  if (last[row] == null) return null;
  const rows = [{ swatch: "swatch-scalar", name, value: short(last[row]) }];
  if (weight) rows.push({ swatch: "swatch-scalar", name: "smoothed", value: short(smoothed(last)[row]) });
  if (min[row] !== max[row]) rows.push({ swatch: "swatch-scalar", name: "range", value: `${short(min[row])} to ${short(max[row])}` });
  return { step: shown.step[row], time_s: shown.time_s[row], rows };
}

smoothing.addEventListener("input", () => {
  weight = Number(smoothing.value) / 100;
  view?.keep({ smooth: weight || null });
  for (const [name, { plot }] of charts) fill(name, plot);
});
logButton.addEventListener("click", () => {
  isLog = !isLog;
  logButton.setAttribute("aria-pressed", String(isLog));
  view?.keep({ scalars: isLog ? "log" : null });
  forgetScalars();
  if (view) drawScalars(shown, view);
});
