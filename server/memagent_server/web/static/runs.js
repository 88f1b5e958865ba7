// The list of runs: a choice searches at once, the filter completes columns, and selected runs can be compared, tagged and archived together.
"use strict";

(() => {
  const MAX_COMPARED = 20;
  const form = document.getElementById("selected");
  for (const select of document.querySelectorAll(".filters select")) select.addEventListener("change", () => select.form.requestSubmit());
  const columns = [...document.querySelectorAll("#names option")].map((option) => option.value);
  for (const name of ["where", "chosen", "group"]) completeColumns(document.getElementById(name));
  if (!form) {
    // The first run arrived on an empty page: reload it to get the form for selected runs.
    document.addEventListener("memagent:refreshed", () => document.querySelector("table.runs") && location.reload(), { once: true });
    return;
  }

  const boxes = () => [...document.querySelectorAll("table.runs input[name=runs]")];
  const all = () => document.getElementById("select-all");

  function show() {
    const selected = boxes().filter((box) => box.checked).length;
    form.hidden = selected === 0;
    document.getElementById("selected-count").textContent = selected === 1 ? "1 run selected" : `${selected} runs selected`;
    const compare = document.getElementById("compare");
    compare.disabled = selected < 2 || selected > MAX_COMPARED;
    compare.title = compare.disabled ? `Select 2 to ${MAX_COMPARED} runs to compare them` : "";
    if (!all()) return;
    all().hidden = false;
    all().checked = selected > 0 && selected === boxes().length;
    all().indeterminate = selected > 0 && selected < boxes().length;
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches("input, select, textarea")) return;
    event.preventDefault();
    document.querySelector(".filters input[type=search]")?.focus();
  });

  // A click beside the panel closes it, as it does with a menu.
  const panel = document.getElementById("arrange");
  document.addEventListener("click", ({ target }) => {
    if (!panel?.contains(target)) panel?.removeAttribute("open");
  });
  panel?.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    panel.removeAttribute("open");
    panel.querySelector("summary").focus();
  });

  // Complete the word at the end of a filter or a choice of columns: a datalist completes the whole text.
  function completeColumns(field) {
    if (!field) return;
    const complete = () => {
      const word = /[\w./@-]*$/.exec(field.value)[0];
      const before = field.value.slice(0, field.value.length - word.length);
      const fitting = columns.filter((column) => column.startsWith(word));
      field.list.replaceChildren(...fitting.map((column) => new Option(column, before + column)));
    };
    for (const event of ["focus", "input"]) field.addEventListener(event, complete);
  }

  document.addEventListener("change", (event) => {
    if (event.target.id === "select-all") for (const box of boxes()) box.checked = event.target.checked;
    if (event.target.closest("table.runs")) show();
  });
  // Enter presses the button beside the field, not the first one of the form.
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
    event.preventDefault();
    event.target.parentElement.querySelector("button").click();
  });
  document.addEventListener("memagent:refreshed", show);
  window.addEventListener("pageshow", show);
  show();
})();
