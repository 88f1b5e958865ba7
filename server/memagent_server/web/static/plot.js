// Shared by the charts of all pages: the look of axes, entries of a legend, and selections.

export function property(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Redraw when the color scheme changes; print in light colors.
export function whenColorsChange(redraw) {
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redraw);
}

// `colors` is read at each drawing, because the color scheme can change.
export function axis(colors, more) {
  return {
    stroke: () => colors().muted, font: "12px system-ui, sans-serif", gap: 6,
    grid: { stroke: () => colors().grid, width: 1 }, ticks: { show: false }, ...more,
  };
}

// The charts share only the cursor: a selection applies to one chart.
export function isMove(type) {
  return type === "mousemove" || type === "mouseleave";
}

export function size(element) {
  return { width: Math.max(200, element.clientWidth), height: element.clientHeight };
}

// Return the selected range of x as [from, to] and clear the selection; null for a click.
export function selection(u) {
  if (u.select.width < 4) return null;
  const bounds = [u.select.left, u.select.left + u.select.width].map((left) => u.posToVal(left, "x"));
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  return bounds;
}

export function newest(values) {
  return values.findLast((value) => value !== null);
}

// An entry of a legend: a swatch and a text, as a button or not.
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
