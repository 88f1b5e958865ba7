// A slider over the stored forecasts: what did it say after step n? They are loaded when the slider is opened.
import { count } from "./text.js";

const box = document.getElementById("forecast-history");
const slider = document.getElementById("forecast-step");
const output = document.getElementById("forecast-text");
let history = []; // of this rank and device, oldest first

// `facts()` returns those of the chart. `show(forecast)` draws one, null for none; `hide()` goes back to the newest.
export function followForecasts({ facts, show, hide }) {
  const choose = () => {
    const step = Number(slider.value);
    const forecast = history.findLast((item) => item.step <= step) ?? null;
    output.textContent = `After step ${count(step)}: ${describe(forecast)}`;
    show(forecast?.level === "ok" || forecast?.eta_step == null ? null : forecast);
  };
  box.addEventListener("toggle", async () => {
    if (!box.open) return hide();
    const { rank, device, first_step, last_step } = facts();
    try {
      const response = await fetch(box.dataset.url, { headers: { Accept: "application/json" } });
      if (!response.ok) throw new Error(`the server returned ${response.status}`);
      const all = (await response.json()).history.filter((item) => item.rank === rank && item.device === device);
      history = all.filter((item) => item.attempt === all.at(-1).attempt);
      Object.assign(slider, { min: first_step, max: last_step, value: history.find(({ level }) => level !== "ok")?.step ?? last_step, disabled: false });
      choose();
    } catch (error) {
      output.textContent = `The forecasts could not be loaded: ${error.message}.`;
    }
  });
  slider.addEventListener("input", choose);
}

function describe(forecast) {
  if (!forecast) return "no forecast yet.";
  const since = `made at step ${count(forecast.step)}`;
  if (forecast.level === "ok" || forecast.eta_step === null) return `no risk, ${since}.`;
  const interval = forecast.eta_low === null || forecast.eta_high === null ? "" : ` (${count(forecast.eta_low)} to ${count(forecast.eta_high)})`;
  const cause = forecast.cause ? `, ${forecast.cause.replaceAll("_", " ")}` : "";
  return `${forecast.level}${cause}, ${Math.round(100 * forecast.oom_probability)} % likely, limit at about step ${count(forecast.eta_step)}${interval}, ${since}.`;
}
