// The parts of the memory chart besides its curves: limit, prediction, forecast, markers. Drawn on uPlot's canvas in its hooks.
// `facts` is the result of view_models.chart_facts, `colors` the custom properties of the style sheet, `toX` maps a step to x.
import { bytes } from "./text.js";

function inPlot(u, paint, toX = (step) => step) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  const x = (step) => u.valToPos(toX(step), "x", true);
  const y = (value) => u.valToPos(value, "y", true);
  paint(ctx, devicePixelRatio, x, y);
  ctx.restore();
}

export function drawLevels(u, facts, colors) {
  inPlot(u, (ctx, ratio, _, y) => {
    const paint = (value, color, label, dashes) => level(u, ctx, ratio, y(value), { value, color, label, dashes, halo: colors.surface });
    if (facts.predicted_peak_bytes) paint(facts.predicted_peak_bytes, colors.predicted, "predicted peak", [2, 3]);
    if (facts.limit_bytes) paint(facts.limit_bytes, colors.limit, "limit", [7, 4]);
  });
}

function level(u, ctx, ratio, top, { value, color, label, dashes, halo }) {
  const left = u.bbox.left + 8 * ratio;
  ctx.strokeStyle = ctx.fillStyle = color;
  ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
  if (top < u.bbox.top) {
    if (label === "limit") write(ctx, ratio, `limit ${bytes(value)} is above ↑`, left, u.bbox.top + 12 * ratio, halo);
    return;
  }
  ctx.lineWidth = 1.5 * ratio;
  ctx.setLineDash(dashes.map((dash) => dash * ratio));
  stroke(ctx, [u.bbox.left, top], [u.bbox.left + u.bbox.width, top]);
  ctx.setLineDash([]);
  write(ctx, ratio, `${label} ${bytes(value)}`, left, top - 5 * ratio, halo);
}

// Text that stays readable above a curve.
function write(ctx, ratio, text, left, bottom, halo) {
  ctx.save();
  ctx.lineWidth = 4 * ratio;
  ctx.lineJoin = "round";
  ctx.strokeStyle = halo;
  ctx.strokeText(text, left, bottom);
  ctx.restore();
  ctx.fillText(text, left, bottom);
}

// The line of memory up to the limit, and the interval of its end. It begins at the peak that the forecast was made from, so on
// the curve: with the growth alone it wouldn't, if that speeds up. Without growth there is only a date.
export function drawForecast(u, facts, colors, toX) {
  const forecast = facts.forecast;
  if (!forecast || !facts.limit_bytes) return;
  inPlot(u, (ctx, ratio, x, y) => {
    ctx.strokeStyle = ctx.fillStyle = colors[forecast.level] ?? colors.warning;
    ctx.lineWidth = 2 * ratio;
    const limit = facts.limit_bytes;
    const first = firstBytes(forecast, facts);
    const bottom = u.bbox.top + u.bbox.height;
    const ray = (to) => (first ? slope([forecast.step, first], [to, limit], x, y) : [[x(to), bottom], [x(to), y(limit)]]);
    if (first && forecast.eta_low !== null && forecast.eta_high !== null) {
      cone(ctx, [...ray(Math.max(forecast.step, forecast.eta_low)), ...ray(forecast.eta_high).reverse()]);
    }
    ctx.setLineDash([5 * ratio, 4 * ratio]);
    stroke(ctx, ...ray(forecast.eta_step));
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.arc(x(forecast.eta_step), y(limit), 4 * ratio, 0, 2 * Math.PI);
    ctx.fill();
  }, toX);
}

// The bytes at which the line begins, null without growth.
export function firstBytes(forecast, facts) {
  const growth = isOfThisLimit(forecast, facts) ? forecast.growth_bytes_per_step : null;
  return growth ? (forecast.used_bytes ?? facts.limit_bytes - growth * (forecast.eta_step - forecast.step)) : null;
}

// Points of steady growth from one [step, bytes] to another: a curve on a logarithmic scale.
function slope([step, value], [lastStep, lastValue], x, y) {
  const shares = Array.from({ length: 17 }, (_, part) => part / 16);
  return shares.map((share) => [x(step + share * (lastStep - step)), y(value + share * (lastValue - value))]);
}

// A forecast about the host's memory says nothing about a GPU's curve.
function isOfThisLimit(forecast, facts) {
  return forecast.limit_bytes === null || Math.abs(forecast.limit_bytes - facts.limit_bytes) < 0.02 * facts.limit_bytes;
}

function cone(ctx, corners) {
  ctx.globalAlpha = 0.2;
  ctx.beginPath();
  for (const corner of corners) ctx.lineTo(...corner);
  ctx.closePath();
  ctx.fill();
  ctx.globalAlpha = 1;
}

// Severe markers get their labels first; a label without room is omitted.
const GRAVITY = ["critical", "warning", "notice", "ok", "plain"];

export function drawMarkers(u, facts, colors, toX) {
  inPlot(u, (ctx, ratio, x) => {
    const right = u.bbox.left + u.bbox.width;
    const visible = facts.markers.map((marker) => ({ ...marker, left: x(marker.step) })).filter(({ left }) => left >= u.bbox.left && left <= right);
    ctx.lineWidth = 1.25 * ratio;
    for (const { left, tone } of visible) {
      ctx.strokeStyle = colors[tone] ?? colors.plain;
      stroke(ctx, [left, u.bbox.top], [left, u.bbox.top + u.bbox.height]);
    }
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    const taken = [];
    for (const marker of visible.sort((a, b) => GRAVITY.indexOf(a.tone) - GRAVITY.indexOf(b.tone))) flag(u, ctx, ratio, marker, colors, taken);
  }, toX);
}

function flag(u, ctx, ratio, { left, label, tone }, colors, taken) {
  const width = ctx.measureText(label).width + 10 * ratio;
  const isFree = (start) =>
    start >= u.bbox.left && start + width <= u.bbox.left + u.bbox.width && taken.every(([from, to]) => start >= to || start + width <= from);
  const start = [left, left - width].find(isFree);
  if (start === undefined) return;
  taken.push([start, start + width]);
  const top = u.bbox.top + u.bbox.height - 20 * ratio;
  ctx.fillStyle = colors[tone] ?? colors.plain;
  ctx.fillRect(start, top, width, 16 * ratio);
  ctx.fillStyle = colors.surface;
  ctx.fillText(label, start + 5 * ratio, top + 12 * ratio);
}

// Ticks along the upper edge, one row per phase, at the steps that had it: evaluations, checkpoints.
export function drawPhases(u, phases, colors, toX) {
  inPlot(u, (ctx, ratio, x) => {
    phases.forEach((steps, row) => {
      ctx.fillStyle = colors.phases[row];
      for (const step of steps) ctx.fillRect(Math.round(x(step) - ratio), u.bbox.top + (1 + 8 * row) * ratio, 2 * ratio, 6 * ratio);
    });
  }, toX);
}

function stroke(ctx, ...points) {
  ctx.beginPath();
  for (const point of points) ctx.lineTo(...point);
  ctx.stroke();
}
