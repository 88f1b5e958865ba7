// The calculator updates while you type: it loads the same page, and takes over the estimate and the errors of fields.
// Without this script, the button of the form does the same.

const WAIT_MS = 250;
const form = document.getElementById("estimate-form");
let timer = 0;
let pendingRequest = null;

function address() {
  const filled = [...new FormData(form)].filter(([, value]) => value !== "");
  return `${form.getAttribute("action")}?${new URLSearchParams(filled)}`;
}

async function update() {
  const url = address();
  pendingRequest?.abort();
  pendingRequest = new AbortController();
  try {
    const response = await fetch(url, { headers: { Accept: "text/html" }, signal: pendingRequest.signal });
    if (!response.ok || response.redirected) return;
    showEstimate(new DOMParser().parseFromString(await response.text(), "text/html"));
    history.replaceState(null, "", url);
  } catch {
    // A newer request replaced this one, or the server is unreachable: the next key retries.
  }
}

function showEstimate(page) {
  document.getElementById("estimate-answer").replaceWith(document.adoptNode(page.getElementById("estimate-answer")));
  for (const message of form.querySelectorAll(".field-wrong")) {
    message.textContent = page.getElementById(message.id).textContent;
    const field = form.querySelector(`[aria-describedby="${message.id}"]`);
    if (message.textContent) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
  if (document.getElementById("field-model").value === "shape") form.querySelector("details").open = true;
}

form.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(update, WAIT_MS);
});

// A link to an advice opens its code, so it can be shared.
function showAdvice() {
  if (location.hash.startsWith("#advice-")) document.getElementById(location.hash.slice(1))?.querySelector("details")?.setAttribute("open", "");
}

document.addEventListener("click", (event) => event.target.closest('a[href^="#advice-"]') && setTimeout(showAdvice));
window.addEventListener("hashchange", showAdvice);
showAdvice();
