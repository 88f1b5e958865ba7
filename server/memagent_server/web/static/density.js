// The reader's choice of comfortable rows in the list of runs, kept in this browser. Rows are dense without it.

const KEY = "memagent:rows";
const COMFORTABLE = "comfortable";

function show() {
  const isComfortable = localStorage.getItem(KEY) === COMFORTABLE;
  document.documentElement.classList.toggle("is-comfortable", isComfortable);
  document.getElementById("density")?.setAttribute("aria-pressed", String(isComfortable));
}

document.addEventListener("click", ({ target }) => {
  if (target.id !== "density") return;
  if (localStorage.getItem(KEY) === COMFORTABLE) localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, COMFORTABLE);
  show();
});
document.addEventListener("memagent:refreshed", show);
show();
