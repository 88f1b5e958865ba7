// The list of runs: choosing a filter searches at once, and runs that are chosen can be compared, tagged and archived together.
"use strict";

(() => {
  const MOST_COMPARED = 20;
  const form = document.getElementById("chosen");
  for (const select of document.querySelectorAll(".filters select")) select.addEventListener("change", () => select.form.requestSubmit());
  if (!form) {
    // The first run has come to a page that had none: only the whole page has what is needed to choose it.
    document.addEventListener("memagent:refreshed", () => document.querySelector("table.runs") && location.reload(), { once: true });
    return;
  }

  const boxes = () => [...document.querySelectorAll("table.runs input[name=runs]")];
  const all = () => document.getElementById("choose-all");

  function show() {
    const chosen = boxes().filter((box) => box.checked).length;
    form.hidden = chosen === 0;
    document.getElementById("chosen-count").textContent = chosen === 1 ? "1 run chosen" : `${chosen} runs chosen`;
    const compare = document.getElementById("compare");
    compare.disabled = chosen < 2 || chosen > MOST_COMPARED;
    compare.title = compare.disabled ? `Choose 2 to ${MOST_COMPARED} runs to compare them` : "";
    if (!all()) return;
    all().hidden = false;
    all().checked = chosen > 0 && chosen === boxes().length;
    all().indeterminate = chosen > 0 && chosen < boxes().length;
  }

  document.addEventListener("change", (event) => {
    if (event.target.id === "choose-all") for (const box of boxes()) box.checked = event.target.checked;
    if (event.target.closest("table.runs")) show();
  });
  document.addEventListener("memagent:refreshed", show);
  window.addEventListener("pageshow", show);
  show();
})();
