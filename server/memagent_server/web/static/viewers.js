// Load the script of a viewer when its part is on the page: at once, or when a refresh brings it.

const loaded = new Set();

function load() {
  for (const { dataset } of document.querySelectorAll("[data-script]")) {
    if (loaded.has(dataset.script)) continue;
    loaded.add(dataset.script);
    document.head.append(Object.assign(document.createElement("script"), { type: "module", src: dataset.script }));
  }
}

document.addEventListener("memagent:refreshed", load);
load();
