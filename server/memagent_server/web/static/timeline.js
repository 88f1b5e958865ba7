// The allocator's timeline of a snapshot: live allocations by call site, stacked over the events of the record, below what the
// allocator had reserved. The record is loaded when it's asked for: it has up to some megabytes.
import { axis, entry, property, selection, size, whenColorsChange } from "./plot.js";
import { INCREMENTS, bytes, count, tick } from "./text.js";
import { bind, tooltip } from "./tooltip.js";
import { BEFORE, OTHERS, replay } from "./allocations.js";
import { readPickle } from "./pickle.js";
import { bindKeys } from "./keys.js";

// The parts of the page; a refresh with a newer record replaces them.
let section, open, body, container, note, legend, table;
let record = null; // the result of `replay`
let window_ = null; // [from, to] in events, or null for all
let chart = null;

const swatchOf = ({ name }, index) => (name === BEFORE ? "timeline-before" : name === OTHERS ? "timeline-other" : `run-${index}`);
const colorOf = (site, index) => property(site.name === BEFORE ? "part-context" : site.name === OTHERS ? "part-other" : `run-${index}`);

async function load() {
  open.disabled = true;
  body.hidden = false;
  try {
    const response = await fetch(section.dataset.url);
    if (!response.ok) throw new Error(`the server returned ${response.status}`);
    const packed = /"base64": "([^"]+)"/.exec(await response.text())?.[1];
    if (!packed) throw new Error("its page has no record");
    const snapshot = readPickle(Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0)));
    record = replay(snapshot, Math.max(100, Math.round(container.clientWidth / 2)));
    if (!record.events) throw new Error("it has no events");
    draw();
  } catch (error) {
    note.textContent = `The timeline can't be drawn: ${error.message}.`;
    open.disabled = false;
  }
}

function draw() {
  note.hidden = true;
  open.hidden = true;
  const { columns, sites } = record;
  let below = columns.event.map(() => 0);
  const edges = columns.live.map((values) => (below = values.map((value, row) => below[row] + value)));
  chart = new uPlot(options(sites), [columns.event, ...edges, columns.reserved], container);
  const canvas = container.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Live allocations by call site; the table below has their figures");
  container.dataset.drawn = String(record.events);
  legend.replaceChildren(...[...sites].map((site, index) => entry("span", swatchOf(site, index), site.name)).reverse(), entry("span", "swatch-reserved_bytes", "reserved"));
  table.tBodies[0].replaceChildren(...sites.map(tableRow));
}

function options(sites) {
  const colors = () => ({ muted: property("muted"), grid: property("grid") });
  const paint = (index) => `${colorOf(sites[index], index)}b3`;
  return {
    ...size(container),
    padding: [10, 26, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, bind: { ...bind, dblclick: () => () => zoomTo(null) } },
    scales: { x: { time: false, range: (_, low, high) => window_ ?? [low, Math.max(high, low + 1)] }, y: { range: (_, __, high) => [0, (high || 1) * 1.06] } },
    axes: [
      axis(colors, { size: 28, values: (_, values) => values.map((value) => (Number.isInteger(value) ? count(value) : "")) }),
      axis(colors, { size: 66, incrs: INCREMENTS, values: (_, values, __, ___, increment) => values.map((value) => tick(value, increment, values.at(-1))) }),
    ],
    series: [{}, ...sites.map((site, index) => ({ stroke: () => colorOf(site, index), width: 1, points: { show: false }, fill: () => paint(index) })),
      { stroke: () => property("curve-reserved"), width: 1.5, points: { show: false } }],
    bands: sites.slice(1).map((_, below) => ({ series: [below + 2, below + 1], fill: () => paint(below + 1) })),
    plugins: [tooltip(describe)],
    hooks: { setSelect: [(u) => zoomTo(...(selection(u) ?? window_ ?? [null]))] },
  };
}

function zoomTo(from, to) {
  const last = record.columns.event.at(-1);
  window_ = from === null || (from <= 0 && to >= last) ? null : [Math.max(0, from), Math.min(last, to)];
  chart.setData(chart.data);
}

function describe(row) {
  const { columns, sites } = record;
  const rows = sites.map((site, index) => ({ swatch: swatchOf(site, index), name: site.name, value: bytes(columns.live[index][row]) }));
  const shown = rows.filter((_, index) => columns.live[index][row] > 0).reverse();
  shown.unshift({ swatch: "swatch-reserved_bytes", name: "reserved", value: bytes(columns.reserved[row]) });
  const first = columns.time_us.find((at) => at !== null);
  const after = columns.time_us[row] === null ? "" : ` after ${((columns.time_us[row] - first) / 1000).toFixed(1)} ms`;
  return { title: `Event ${count(columns.event[row])}${after}: ${bytes(columns.total[row])} live`, rows: shown };
}

function tableRow(site, index) {
  const row = document.createElement("tr");
  const head = Object.assign(document.createElement("th"), { scope: "row", className: "mono" });
  head.append(Object.assign(document.createElement("span"), { className: `swatch ${swatchOf(site, index)}` }), ` ${site.name}`);
  const cell = (value) => Object.assign(document.createElement("td"), { className: "number", textContent: bytes(value) });
  row.append(head, cell(site.peak_bytes), cell(site.end_bytes));
  return row;
}

function attach() {
  const newest = document.getElementById("timeline");
  if (!newest || newest === section) return;
  const part = (name) => document.getElementById(`timeline-${name}`);
  section = newest;
  [open, body, container, note, legend, table] = ["open", "body", "chart", "note", "legend", "sites"].map(part);
  chart?.destroy();
  [record, window_, chart] = [null, null, null];
  open.disabled = false;
  open.addEventListener("click", load);
  bindKeys(container, { chart: () => chart, zoomTo });
  new ResizeObserver(() => chart?.setSize(size(container))).observe(container);
}

whenColorsChange(() => chart?.redraw(true, true));
document.addEventListener("memagent:refreshed", attach);
attach();
