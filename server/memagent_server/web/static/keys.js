// Keys of a chart that has the focus: move its cursor, zoom, and pan. The page lists them below the chart.
import { point } from "./tooltip.js";

const FAR = 10; // rows, with Shift
const ZOOM = 0.5;

// `chart()` returns the plot, or null before there is one; `zoomTo(from, to)` takes values of x, and null for all of them.
// `toggles` maps further keys to functions.
export function bindKeys(container, { chart, zoomTo, toggles = {} }) {
  const move = (rows) => (u) => moveTo(u, (u.cursor.idx ?? lastRow(u)) + rows);
  const keys = {
    ArrowLeft: move(-1), ArrowRight: move(1), "Shift+ArrowLeft": move(-FAR), "Shift+ArrowRight": move(FAR),
    Home: (u) => moveTo(u, 0), End: (u) => moveTo(u, Infinity),
    "+": (u) => zoomTo(...around(u, ZOOM)), "-": (u) => zoomTo(...around(u, 1 / ZOOM)),
    "[": (u) => zoomTo(...shifted(u, -ZOOM)), "]": (u) => zoomTo(...shifted(u, ZOOM)),
    0: () => zoomTo(null), Escape: leave,
    ...Object.fromEntries(Object.entries(toggles).map(([key, change]) => [key, () => change()])),
  };
  container.tabIndex = 0;
  container.addEventListener("keydown", (event) => {
    const u = chart();
    if (!u || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key === "=" ? "+" : event.key;
    const act = keys[event.shiftKey && key.startsWith("Arrow") ? `Shift+${key}` : key];
    if (!act) return;
    event.preventDefault();
    act(u);
  });
  container.addEventListener("blur", () => chart() && leave(chart()));
  container.addEventListener("pointerdown", ({ pointerType }) => pointerType === "mouse" && container.focus({ preventScroll: true }));
}

const lastRow = (u) => u.data[0].length - 1;

function moveTo(u, row) {
  const at = u.data[0][Math.max(0, Math.min(lastRow(u), row))];
  if (at === undefined) return;
  point(u);
  u.setCursor({ left: u.valToPos(at, "x"), top: u.over.clientHeight / 2 }, true, true);
}

function leave(u) {
  u.setCursor({ left: -10, top: -10 }, true, true);
}

// The window around the cursor, or around the middle, scaled.
function around(u, scale) {
  const { min, max } = u.scales.x;
  const center = u.cursor.idx == null ? (min + max) / 2 : u.data[0][u.cursor.idx];
  return [center - (center - min) * scale, center + (max - center) * scale];
}

function shifted(u, share) {
  const { min, max } = u.scales.x;
  return [min + share * (max - min), max + share * (max - min)];
}
