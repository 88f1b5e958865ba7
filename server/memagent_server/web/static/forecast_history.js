// A slider over the stored forecasts, one place each: what did they say? They are loaded when the slider is opened.
import { count } from "./text.js";

const box = document.getElementById("forecast-history");
const slider = document.getElementById("forecast-step");
const output = document.getElementById("forecast-text");
let history = []; // of this rank and device, oldest first

// `facts()` returns those of the chart. `show(forecast)` draws one, null for none; `hide()` goes back to the newest.
export function followForecasts({ facts, show, hide }) {
  const choose = () => {
    const forecast = history[Number(slider.value)];
    const text = forecast ? describe(forecast) : "No forecast yet.";
    output.textContent = text;
    slider.setAttribute("aria-valuetext", text);
    show(!forecast || forecast.level === "ok" || forecast.eta_step === null ? null : forecast);
  };
  box.addEventListener("toggle", async () => {
    if (!box.open) return hide();
    const { rank, device } = facts();
    try {
      const response = await fetch(box.dataset.url, { headers: { Accept: "application/json" } });
      if (!response.ok) throw new Error(`the server returned ${response.status}`);
      const all = (await response.json()).history.filter((item) => item.rank === rank && item.device === device);
      history = all.filter((item) => item.attempt === all.at(-1).attempt);
      const last = Math.max(0, history.length - 1);
      Object.assign(slider, { max: last, value: last, disabled: last === 0 });
      choose();
    } catch (error) {
      output.textContent = `The forecasts could not be loaded: ${error.message}.`;
    }
  });
  slider.addEventListener("input", choose);
}

function describe(forecast) {
  const made = `Step ${count(forecast.step)}: `;
  const likely = `${Math.round(100 * forecast.oom_probability)} % likely`;
  if (forecast.level === "ok" || forecast.eta_step === null) return `${made}out of memory is ${likely}.`;
  const interval = forecast.eta_low === null || forecast.eta_high === null ? "" : ` (${count(forecast.eta_low)} to ${count(forecast.eta_high)})`;
  const cause = forecast.cause ? `, ${forecast.cause.replaceAll("_", " ")}` : "";
  return `${made}${forecast.level}${cause}, ${likely}, limit at about step ${count(forecast.eta_step)}${interval}.`;
}
