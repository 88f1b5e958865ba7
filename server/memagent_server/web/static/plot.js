// What the charts of all pages have in common: how an axis looks, how a legend's entry is made, what a selection means.

export function property(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Light becomes dark in the evening, and either is printed in light.
export function whenColoursChange(redraw) {
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redraw);
}

// `colours` is asked anew at each drawing: people change between light and dark.
export function axis(colours, more) {
  return {
    stroke: () => colours().muted, font: "12px system-ui, sans-serif", gap: 6,
    grid: { stroke: () => colours().grid, width: 1 }, ticks: { show: false }, ...more,
  };
}

// The charts share the cursor, and nothing else: a selection in one is no selection in the others.
export function isMove(type) {
  return type === "mousemove" || type === "mouseleave";
}

export function size(element) {
  return { width: Math.max(200, element.clientWidth), height: element.clientHeight };
}

// What was selected on the x axis as [from, to], and the selection is taken away; null for a click.
export function selection(u) {
  if (u.select.width < 4) return null;
  const bounds = [u.select.left, u.select.left + u.select.width].map((left) => u.posToVal(left, "x"));
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  return bounds;
}

export function newest(values) {
  return values.findLast((value) => value !== null);
}

// A legend's entry: a swatch and a text; a button can be pressed.
export function entry(tag, swatch, text) {
  const element = document.createElement(tag);
  element.className = tag === "span" ? "entry" : "";
  if (swatch) {
    const line = document.createElement("span");
    line.className = `swatch ${swatch}`;
    element.append(line);
  }
  element.append(text);
  return element;
}
