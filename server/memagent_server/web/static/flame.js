// Search the flame graph: frames that don't match fade, and the share of the memory below those that do is summed up.
"use strict";

(() => {
  const blockOf = (group) => {
    const box = group.querySelector("rect");
    const [x, y, width] = ["x", "y", "width"].map((name) => Number(box.getAttribute(name)));
    return { group, x, y, width, text: group.querySelector("title").textContent.toLowerCase() };
  };

  function search() {
    const words = document.getElementById("flame-search")?.value.trim().toLowerCase();
    if (words === undefined) return;
    const blocks = [...document.querySelectorAll("#flame svg g")].map(blockOf).sort((a, b) => a.y - b.y);
    const found = blocks.filter(({ text }) => words && text.includes(words));
    for (const { group } of blocks) group.classList.remove("is-faded");
    if (words) for (const block of blocks) if (!found.includes(block)) block.group.classList.add("is-faded");
    // a match below another one is a part of it
    const outermost = found.filter((block) => !found.some((other) => other.y < block.y && other.x <= block.x && block.x < other.x + other.width));
    const share = outermost.reduce((sum, { width }) => sum + width, 0) / Math.max(...blocks.map(({ width }) => width));
    const frames = `${found.length} ${found.length === 1 ? "frame" : "frames"}`;
    document.getElementById("flame-found").textContent = words ? `${frames}, ${Math.round(100 * share)} % of the memory` : "";
  }

  document.addEventListener("input", ({ target }) => target.id === "flame-search" && search());
  document.addEventListener("memagent:refreshed", search);
})();
