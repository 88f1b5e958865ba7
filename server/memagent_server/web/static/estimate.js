// The calculator answers while one types: asks for the same page, takes over the answer and what is wrong with which field.
// Without this script the form's button does the same.

const WAIT_MS = 250;
const form = document.getElementById("estimate-form");
let timer = 0;
let asking = null;

function address() {
  const filled = [...new FormData(form)].filter(([, value]) => value !== "");
  return `${form.getAttribute("action")}?${new URLSearchParams(filled)}`;
}

async function update() {
  const url = address();
  asking?.abort();
  asking = new AbortController();
  try {
    const answer = await fetch(url, { headers: { Accept: "text/html" }, signal: asking.signal });
    if (!answer.ok || answer.redirected) return;
    take(new DOMParser().parseFromString(await answer.text(), "text/html"));
    history.replaceState(null, "", url);
  } catch {
    // A newer question took its place, or the server is away: the next key asks again.
  }
}

function take(fresh) {
  document.getElementById("estimate-answer").replaceWith(document.adoptNode(fresh.getElementById("estimate-answer")));
  for (const said of form.querySelectorAll(".field-wrong")) {
    said.textContent = fresh.getElementById(said.id).textContent;
    const field = form.querySelector(`[aria-describedby="${said.id}"]`);
    if (said.textContent) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
  if (document.getElementById("field-model").value === "shape") form.querySelector("details").open = true;
}

form.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(update, WAIT_MS);
});

// The link of an advice leads to its code, opened; it can be shared.
function showAdvice() {
  if (location.hash.startsWith("#advice-")) document.getElementById(location.hash.slice(1))?.querySelector("details")?.setAttribute("open", "");
}

document.addEventListener("click", (event) => event.target.closest('a[href^="#advice-"]') && setTimeout(showAdvice));
window.addEventListener("hashchange", showAdvice);
showAdvice();
