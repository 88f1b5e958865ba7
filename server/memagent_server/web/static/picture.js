// Save a chart as a picture for a report: as on the screen, with its title above and the legend below.

const MARGIN = 16;
const LINE = 22;

export function savePicture(chart, { name, title }, curves, { ink, surface }) {
  const ratio = devicePixelRatio;
  const width = chart.width / ratio + 2 * MARGIN;
  const picture = document.createElement("canvas");
  const ctx = picture.getContext("2d");
  ctx.font = "13px system-ui, sans-serif";
  const lines = wrapped(ctx, curves, width - 2 * MARGIN);
  const height = chart.height / ratio + 2 * MARGIN + LINE * (1 + lines.length);
  Object.assign(picture, { width: width * ratio, height: height * ratio });
  ctx.scale(ratio, ratio);
  ctx.fillStyle = surface;
  ctx.fillRect(0, 0, width, height);
  ctx.fillStyle = ink;
  ctx.textBaseline = "middle";
  ctx.font = "600 15px system-ui, sans-serif";
  ctx.fillText(title, MARGIN, MARGIN + LINE / 2 - 4, width - 2 * MARGIN);
  ctx.drawImage(chart, MARGIN, MARGIN + LINE, chart.width / ratio, chart.height / ratio);
  ctx.font = "13px system-ui, sans-serif";
  lines.forEach((line, row) => drawLine(ctx, line, MARGIN + LINE * (1.5 + row) + chart.height / ratio, ink));
  picture.toBlob((blob) => save(blob, `${name}.png`), "image/png");
}

// The names of the curves, in lines up to `width`.
function wrapped(ctx, curves, width) {
  const lines = [];
  let left = Infinity;
  for (const curve of curves) {
    const needed = ctx.measureText(curve.text).width + 44;
    if (left + needed > width) {
      lines.push([]);
      left = 0;
    }
    lines.at(-1).push({ ...curve, left });
    left += needed;
  }
  return lines;
}

function drawLine(ctx, line, y, ink) {
  for (const { text, color, left } of line) {
    ctx.fillStyle = color;
    ctx.fillRect(MARGIN + left, y - 1.5, 16, 3);
    ctx.fillStyle = ink;
    ctx.fillText(text, MARGIN + left + 22, y);
  }
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
