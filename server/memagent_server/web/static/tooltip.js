// A box beside a chart's cursor with the value of each curve there. It follows the mouse, a finger, and the keys of keys.js.
import { count } from "./text.js";

const GAP = 14;
let isTouched = false; // the newest pointer was a finger
let pointed = null; // the chart that shows its box; the others only follow its cursor

// Show the box of this chart, and of no other.
export function point(u) {
  if (pointed === u) return;
  pointed?.root.querySelector(".tip")?.setAttribute("hidden", "");
  pointed = u;
}

// A bind of uPlot's cursor: after a tap, browsers let an emulated mouse leave, but the box stays until a tap elsewhere.
export const bind = { mouseleave: (u, target, leave) => (event) => isTouched || leave(event) };

// A plugin of uPlot. `describe(row, u)` returns {step, time_s, rows: [{swatch, name, value, note}], notes: [text]}, or null.
export function tooltip(describe) {
  const box = document.createElement("div");
  box.className = "tip";
  box.hidden = true;
  box.setAttribute("aria-hidden", "true"); // the legend has the same values
  return {
    hooks: {
      init(u) {
        u.root.append(box);
        for (const type of ["pointerenter", "pointerdown"]) u.over.addEventListener(type, () => point(u));
        for (const type of ["pointerdown", "pointermove"]) u.over.addEventListener(type, (event) => event.pointerType === "touch" && follow(u, event));
      },
      setCursor(u) {
        const told = pointed === u && u.cursor.idx != null ? describe(u.cursor.idx, u) : null;
        box.hidden = !told;
        if (!told) return;
        box.replaceChildren(heading(told), ...told.rows.map(line), ...(told.notes ?? []).map((text) => part("p", "tip-note", text)));
        place(u, box);
      },
    },
  };
}

// uPlot knows mice only.
function follow(u, event) {
  const bounds = u.over.getBoundingClientRect();
  u.setCursor({ left: event.clientX - bounds.left, top: event.clientY - bounds.top }, true, true);
}

document.addEventListener("pointerdown", ({ target, pointerType }) => {
  isTouched = pointerType === "touch";
  if (!pointed || pointed.root.contains(target)) return;
  pointed.setCursor({ left: -10, top: -10 }, true, true);
  point(null);
}, { capture: true });
document.addEventListener("pointermove", ({ pointerType }) => (isTouched = pointerType === "touch"), { capture: true, passive: true });

function heading({ step, time_s, title }) {
  const head = part("p", "tip-head", title ?? `Step ${count(step)}`);
  if (time_s != null) head.append(part("span", "muted", ` ${moment(new Date(time_s * 1000))}`));
  return head;
}

function moment(at) {
  const time = at.toLocaleTimeString("en-GB");
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? time : `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

function line({ swatch, name, value, note }) {
  const row = document.createElement("p");
  row.append(part("span", `swatch ${swatch}`, ""), part("span", "tip-name", name), part("span", "tip-value", value), part("span", "tip-share", note ?? ""));
  return row;
}

function part(tag, className, text) {
  return Object.assign(document.createElement(tag), { className, textContent: text });
}

// To the right of the cursor, to the left where there is no room, never outside the chart. Below the curves of a narrow one, which it would hide.
const NARROW = 480;
const AXIS = 30;
function place(u, box) {
  const x = u.over.offsetLeft + u.cursor.left;
  const room = u.root.clientWidth - box.offsetWidth;
  const left = x + GAP <= room ? x + GAP : x - GAP - box.offsetWidth;
  box.style.left = `${Math.max(0, Math.min(room, left))}px`;
  const isNarrow = u.root.clientWidth < NARROW;
  box.style.top = `${u.over.offsetTop + (isNarrow ? u.over.offsetHeight + AXIS : 4)}px`;
}
