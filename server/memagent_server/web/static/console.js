// The console of a run: its lines are loaded when the card is opened, and again when there are new ones. Lines are replaced in
// place and the view stays where it is, unless it's at the end.
import { count } from "./text.js";

const AT_END_PX = 24;
const section = document.getElementById("console");
const all = document.getElementById("console-all");
const end = document.getElementById("console-end"); // the last lines of a death
const list = document.getElementById("console-lines");
const search = document.getElementById("console-search");
const found = document.getElementById("console-found");
const rank = document.getElementById("console-rank");
const shown = new Map(); // elements by the number of their line
let isLoading = false;
let loaded = null; // the state of the page that the lines are of

const state = () => document.getElementById("console-state")?.dataset.newest ?? "";

async function load() {
  if (!all.open || isLoading || loaded === state()) return;
  isLoading = true;
  const newest = state();
  try {
    const query = rank.value ? `?rank=${rank.value}` : "";
    const response = await fetch(section.dataset.url + query, { headers: { Accept: "application/json" }, cache: "no-store" });
    if (!response.ok) throw new Error(`the server returned ${response.status}`);
    show((await response.json()).lines);
    loaded = newest;
  } catch (error) {
    if (!shown.size) list.textContent = `The lines could not be loaded: ${error.message}. Close and open this again.`;
  }
  isLoading = false;
}

function show(lines) {
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < AT_END_PX;
  if (!shown.size) list.replaceChildren();
  const numbers = new Set(lines.map((line) => line.number));
  for (const [number, element] of shown) {
    if (numbers.has(number)) continue;
    element.remove();
    shown.delete(number);
  }
  let before = null;
  let last = null;
  for (const line of lines) {
    const gap = last === null || line.number === last + 1 ? "" : `${count(line.number - last - 1)} lines left out`;
    const element = shown.get(line.number) ?? add(line, before);
    if (element.textContent !== `${line.text}\n`) element.textContent = `${line.text}\n`;
    element.dataset.gap = gap;
    before = element;
    last = line.number;
  }
  if (!lines.length) list.textContent = "Nothing was recorded.";
  filter();
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

function add(line, before) {
  const element = document.createElement("span");
  element.className = line.stream === "stderr" ? "line stderr" : "line";
  element.title = `step ${count(line.step)}, ${new Date(line.at).toLocaleString()}, ${line.stream}`;
  if (before) before.after(element);
  else list.prepend(element);
  shown.set(line.number, element);
  return element;
}

function filter() {
  const text = search.value.toLowerCase();
  let matches = 0;
  for (const element of shown.values()) {
    const isMatch = element.textContent.toLowerCase().includes(text);
    element.hidden = !isMatch;
    matches += isMatch;
  }
  found.textContent = text ? `${count(matches)} of ${count(shown.size)} lines` : "";
}

function opened() {
  section.querySelector(".tools").hidden = !all.open;
  if (end) end.hidden = all.open;
  load().then(() => (list.scrollTop = list.scrollHeight));
}

all.addEventListener("toggle", opened);
search.addEventListener("input", filter);
rank.addEventListener("change", () => {
  loaded = null;
  shown.clear();
  load();
});
document.addEventListener("memagent:refreshed", () => {
  if (state()) section.hidden = false;
  load();
});
if (end) end.scrollTop = end.scrollHeight;
if (all.open) opened();
