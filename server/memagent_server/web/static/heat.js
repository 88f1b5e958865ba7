// The ranks of a run as a heat map: a row per rank, a column per interval of steps, the color is the share of the limit. It shows
// the window of the memory chart (run.js sends "memagent:window"). A table contains the same values.
import { property, whenColorsChange } from "./plot.js";
import { bytes, count } from "./text.js";

const container = document.getElementById("heat");
const note = document.getElementById("heat-note");
const output = document.getElementById("heat-at");
const table = document.getElementById("heat-table");
const COLUMNS = 60;
const TABLE_COLUMNS = 8;
const REFRESH_S = 10; // many ranks cost more than one: they are loaded less often than the chart
const LEFT = 34;
const BOTTOM = 18;

const canvas = document.createElement("canvas");
let grid = null;
let window_ = readWindow();
let requestedAt = 0;
let pendingRequest = null;

function readWindow() {
  const parameters = new URLSearchParams(location.search);
  return parameters.has("from") && parameters.has("to") ? { from: parameters.get("from"), to: parameters.get("to") } : {};
}

async function load() {
  pendingRequest?.abort();
  const request = (pendingRequest = new AbortController());
  requestedAt = performance.now();
  try {
    const query = new URLSearchParams({ points: COLUMNS, ...window_ });
    const response = await fetch(`${container.dataset.ranksUrl}?${query}`, { signal: request.signal, headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(`the server returned ${response.status}`);
    grid = await response.json();
    draw();
    fill();
  } catch (error) {
    if (!request.signal.aborted && !grid) note.textContent = `The ranks could not be loaded: ${error.message}.`;
  }
}

// Drawing

function colorOf(share) {
  const stops = [0, 1, 2, 3, 4].map((stop) => property(`heat-${stop}`));
  const at = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1);
  const [low, high] = [stops[Math.floor(at)], stops[Math.floor(at) + 1]].map((text) => [1, 3, 5].map((digit) => parseInt(text.slice(digit, digit + 2), 16)));
  return `rgb(${low.map((value, channel) => Math.round(value + (high[channel] - value) * (at % 1))).join(" ")})`;
}

// Without a limit, ranks are compared with the fullest one.
function limitOf(row) {
  return row.limit_bytes ?? Math.max(1, ...grid.ranks.flatMap(({ max }) => max));
}

function layout() {
  const rows = grid.ranks.length;
  const height = rows <= 8 ? 26 : rows <= 32 ? 16 : rows <= 96 ? 8 : 4;
  return { height, width: container.clientWidth - LEFT, column: (container.clientWidth - LEFT) / grid.step.length };
}

function draw() {
  note.hidden = grid.ranks.length > 0;
  note.textContent = "No samples in this window.";
  const { height, width, column } = layout();
  const ratio = devicePixelRatio;
  Object.assign(canvas, { width: container.clientWidth * ratio, height: (grid.ranks.length * height + BOTTOM) * ratio });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Heat map of the ranks; the table below has its figures");
  if (!canvas.isConnected) container.append(canvas);
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  ctx.font = "11px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  const several = new Set(grid.ranks.map(({ rank }) => rank)).size < grid.ranks.length;
  const gap = height > 8 ? 2 : height > 4 ? 1 : 0;
  grid.ranks.forEach((row, line) => {
    row.max.forEach((value, index) => {
      if (value === null) return;
      ctx.fillStyle = colorOf(value / limitOf(row));
      const [from, to] = [index, index + 1].map((edge) => Math.round((LEFT + edge * column) * ratio) / ratio); // avoid gaps between cells
      ctx.fillRect(from, line * height, to - from, height - gap);
    });
    // a rank of several devices is named once
    const isNamed = several ? row.rank !== grid.ranks[line - 1]?.rank : line % Math.ceil(14 / height) === 0;
    const middle = several ? (height * grid.ranks.filter(({ rank }) => rank === row.rank).length) / 2 : (height - gap) / 2;
    if (isNamed) label(ctx, String(row.rank), LEFT - 8, line * height + middle, "right", row.rank === Number(container.dataset.rank));
  });
  const shown = [0, 0.25, 0.5, 0.75, 1].map((share) => Math.min(grid.step.length - 1, Math.round(share * (grid.step.length - 1))));
  for (const index of new Set(shown)) {
    const align = index === 0 ? "left" : index === grid.step.length - 1 ? "right" : "center";
    label(ctx, count(index === 0 ? grid.from : grid.step[index]), LEFT + (align === "left" ? 0 : align === "right" ? width : (index + 1) * column), grid.ranks.length * height + BOTTOM / 2 + 1, align);
  }
  scale();
  container.dataset.drawn = grid.ranks.length;
}

function label(ctx, text, x, y, align, isStrong = false) {
  ctx.textAlign = align;
  ctx.fillStyle = property(isStrong ? "ink" : "muted");
  ctx.font = `${isStrong ? "700 " : ""}11px system-ui, sans-serif`;
  ctx.fillText(text, x, y);
}

function scale() {
  const bar = document.getElementById("heat-scale");
  const ctx = bar.getContext("2d");
  for (let x = 0; x < bar.width; x += 1) {
    ctx.fillStyle = colorOf(x / bar.width);
    ctx.fillRect(x, 0, 1, bar.height);
  }
}

// Texts

function stretch(index) {
  const first = index ? grid.step[index - 1] + 1 : grid.from;
  return first === grid.step[index] ? `step ${count(first)}` : `steps ${count(first)} to ${count(grid.step[index])}`;
}

function at(event) {
  if (!grid?.ranks.length) return null;
  const { height, column } = layout();
  const box = canvas.getBoundingClientRect();
  const [row, index] = [Math.floor((event.clientY - box.top) / height), Math.floor((event.clientX - box.left - LEFT) / column)];
  return grid.ranks[row] && index >= 0 && index < grid.step.length ? { row: grid.ranks[row], index } : null;
}

function showValues(event) {
  const hit = at(event);
  const value = hit?.row.max[hit.index] ?? null;
  canvas.style.cursor = hit ? "pointer" : "";
  output.textContent = !hit ? "" : `Rank ${hit.row.rank}${hit.row.device && isOfSeveral(hit.row) ? `, ${hit.row.device}` : ""}, ${stretch(hit.index)}: ${value === null ? "no sample" : `${bytes(value)}, ${percent(value, hit.row)}`}`;
}

function isOfSeveral({ rank }) {
  return grid.ranks.filter((row) => row.rank === rank).length > 1;
}

function percent(value, row) {
  return value === null ? "–" : `${Math.round((100 * value) / limitOf(row))} %`;
}

function fill() {
  const parts = Math.min(TABLE_COLUMNS, grid.step.length);
  const bounds = Array.from({ length: parts }, (_, part) => Math.floor(((part + 1) * grid.step.length) / parts) - 1);
  const cell = (tag, text, scope) => Object.assign(document.createElement(tag), { textContent: text, className: "number", ...(scope && { scope }) });
  const line = (...cells) => {
    const row = document.createElement("tr");
    row.append(...cells);
    return row;
  };
  const most = (values) => values.reduce((high, value) => (value !== null && (high === null || value > high) ? value : high), null);
  table.tHead.replaceChildren(line(cell("th", "Rank", "col"), ...bounds.map((index) => cell("th", `to ${count(grid.step[index])}`, "col"))));
  table.tBodies[0].replaceChildren(
    ...grid.ranks.map((row) =>
      line(cell("th", row.rank, "row"), ...bounds.map((index, part) => cell("td", percent(most(row.max.slice(part ? bounds[part - 1] + 1 : 0, index + 1)), row)))),
    ),
  );
  table.hidden = !grid.ranks.length;
}

canvas.addEventListener("mousemove", showValues);
canvas.addEventListener("mouseleave", () => (output.textContent = ""));
canvas.addEventListener("click", (event) => {
  const hit = at(event);
  if (hit) location.href = `${container.dataset.runUrl}?${new URLSearchParams({ rank: hit.row.rank, device: hit.row.device })}`;
});
document.addEventListener("memagent:window", (event) => {
  window_ = event.detail ? { from: event.detail[0], to: event.detail[1] } : {};
  load();
});
document.addEventListener("memagent:refreshed", () => performance.now() - requestedAt > REFRESH_S * 1000 && load());
whenColorsChange(() => grid && draw());
new ResizeObserver(() => grid && draw()).observe(container);
load();
