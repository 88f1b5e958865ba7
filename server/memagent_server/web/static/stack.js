// What the memory is for, over steps: components stacked up to the peak of each step. What no component accounts for is "other tensors":
// where that grows from step to step, something keeps tensors. The chart shows the window and the axis of the memory chart (run.js leaves
// both at its place), and asks for its data only once people come near it: it lies below the fold.
import { axis, entry, isMove, property, selection, size, whenColoursChange } from "./plot.js";
import { INCREMENTS, STEP_INCREMENTS, bytes, clock, count, tick } from "./text.js";

const place = document.getElementById("stack-chart");
const memory = document.getElementById("memory-chart");
const note = document.getElementById("stack-note");
const legend = document.getElementById("stack-legend");
const REFRESH_S = 10; // while a run goes on; the memory chart above is the one to watch
const OTHER = "other";

let grid = null;
let layers = []; // {name, values}, from the bottom to the top
let chart = null;
let isNear = false;
let asked = -Infinity;
let askedFor = null;
let asking = null;

const facts = () => JSON.parse(document.getElementById("chart-facts").dataset.facts);
const shown = () => memory.shown; // {range, isByClock, zoom, last}, from run.js
const isRead = (name) => name !== OTHER;
const colourOf = (name) => property(`part-${name}`);

// Data

async function load() {
  if (!isNear || !shown()) return;
  const { zoom, last, isByClock, range } = shown();
  const wanted = JSON.stringify([zoom, isByClock]);
  if (wanted === askedFor && (last === grid?.last || performance.now() - asked < REFRESH_S * 1000)) return fit(range);
  [asked, askedFor] = [performance.now(), wanted];
  asking?.abort();
  const mine = (asking = new AbortController());
  try {
    const { rank, device } = facts();
    const names = place.dataset.parts.split(",");
    const query = new URLSearchParams({ rank, device, points: Math.max(50, Math.min(500, Math.round(place.clientWidth / 2))) });
    query.set("fields", ["peak_allocated_bytes", ...names.filter(isRead).map((name) => `${name}_bytes`)].join(","));
    if (zoom) for (const [name, step] of [["from", zoom[0]], ["to", zoom[1]]]) query.set(name, step);
    const answer = await fetch(`${memory.dataset.seriesUrl}?${query}`, { signal: mine.signal, headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    grid = { ...(await answer.json()), last };
    layers = stack(names);
    draw();
  } catch (error) {
    if (!mine.signal.aborted && !chart) note.textContent = `The components could not be loaded: ${error.message}.`;
  }
}

// A step without a peak has no column. Activations are what a step needs on top of what it found, so they lie on top. Where a column
// stands for several steps, it shows the one that needed most.
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
  tell(null);
  place.dataset.drawn = layers.map(({ name }) => name).join();
}

function fit() {
  chart?.setData(chart.data);
}

function build(kind) {
  const isByClock = shown().isByClock;
  const values = isByClock ? (_, values, __, ___, increment) => clock(values, increment) : (_, values) => values.map(count);
  const colours = () => ({ muted: property("muted"), grid: property("grid") });
  const made = new uPlot(
    {
      ...size(place),
      padding: [10, 26, 0, 0],
      legend: { show: false },
      cursor: {
        y: false, points: { show: false }, drag: { x: true, y: false, setScale: false },
        sync: { key: "memagent", setSeries: false, scales: ["x", null], filters: { pub: isMove, sub: isMove } },
        bind: { dblclick: () => () => zoomTo(null) },
      },
      scales: { x: { time: isByClock, range: () => shown().range }, y: { range: (_, __, high) => [0, (high || 1) * 1.06] } },
      axes: [
        axis(colours, { size: isByClock ? 42 : 28, values, ...(!isByClock && { incrs: STEP_INCREMENTS }) }),
        axis(colours, { size: 66, incrs: INCREMENTS, values: (_, values, __, ___, increment) => values.map((value) => tick(value, increment, values.at(-1))) }),
      ],
      series: [{}, ...layers.map(({ name }) => ({ stroke: () => colourOf(name), width: 1, points: { show: false }, fill: () => `${colourOf(name)}b3` }))],
      bands: layers.slice(1).map(({ name }, below) => ({ series: [below + 2, below + 1], fill: () => `${colourOf(name)}b3` })),
      hooks: { setSelect: [zoomToSelection], setCursor: [(u) => tell(u.cursor.idx)] },
    },
    [[], ...layers.map(() => [])],
    place,
  );
  made.memagentKind = kind;
  const canvas = place.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Components of the memory, stacked; the table of components has their figures");
  return made;
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

// The legend: from the top to the bottom, as the layers lie

function tell(index) {
  const at = index ?? grid.step.length - 1;
  const entries = [...layers].reverse().map(({ name, values }) => {
    const item = entry("span", `swatch-part-${name}`, name === OTHER ? "other tensors" : name.replaceAll("_", " "));
    item.append(Object.assign(document.createElement("span"), { className: "value", textContent: bytes(values[at]) }));
    return item;
  });
  const where = entry("span", null, "Step");
  where.append(Object.assign(document.createElement("span"), { className: "value", textContent: count(grid.step[at] ?? 0) }));
  legend.replaceChildren(where, ...entries);
}

document.addEventListener("memagent:shown", load);
whenColoursChange(() => chart?.redraw(true, true));
new ResizeObserver(() => chart?.setSize(size(place))).observe(place);
new IntersectionObserver(
  (seen) => {
    isNear = seen.at(-1).isIntersecting; // who scrolls fast comes and goes within one report
    load();
  },
  { rootMargin: "300px" },
).observe(place);
