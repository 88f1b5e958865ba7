// Refresh a page: load it again every few seconds and replace the parts marked data-live that have changed.
// The server returns 304 while nothing has, and the page asks less often the longer nothing changes. Unchanged parts are not
// rebuilt, so nothing flickers, and a part under a moving pointer waits. A page that can't be refreshed says so.
"use strict";

(() => {
  const main = document.querySelector("main[data-refresh-s]");
  if (!main) return;
  const MAX_SLOWDOWN = 5;
  const POINTER_MS = 1500;
  const served = new Map(parts(document).map((part) => [part.id, content(part)]));
  let timer = 0;
  let failures = 0;
  let unchanged = 0;
  let pointedAt = -Infinity;
  let refreshedAt = new Date();
  let etag = null;

  function parts(from) {
    return [...from.querySelectorAll("[data-live][id]")];
  }

  // What the server sent: times are rewritten by time.js, and the masks of forms' tokens differ each time.
  function content(part) {
    return part.outerHTML.replace(/(<time datetime="[^"]*")[^>]*>[^<]*/g, "$1").replace(/name="form_token" value="\w*"/g, "");
  }

  function schedule() {
    clearTimeout(timer);
    if (document.hidden) return;
    const slowdown = Math.min(MAX_SLOWDOWN, 1 + unchanged / 10);
    const seconds = Number(main.dataset.refreshS) * Math.max(slowdown, Math.min(10, 1 + failures));
    timer = setTimeout(refresh, seconds * 1000);
  }

  async function refresh() {
    try {
      const headers = { Accept: "text/html", "Memagent-Refresh": "1", ...(etag && { "If-None-Match": etag }) };
      const response = await fetch(location.href, { headers, cache: "no-store" });
      if (response.ok && !response.redirected) {
        etag = response.headers.get("ETag");
        update(new DOMParser().parseFromString(await response.text(), "text/html"));
      }
      unchanged = response.status === 304 ? unchanged + 1 : 0;
      failures = response.ok || response.status === 304 ? 0 : failures + 1;
    } catch {
      failures += 1; // the server is unreachable: retry less often
    }
    if (!failures) refreshedAt = new Date();
    showAge();
    schedule();
  }

  function showAge() {
    let note = document.getElementById("stale");
    if (failures < 2) return note?.remove();
    if (!note) {
      note = document.createElement("p");
      note.id = "stale";
      note.className = "stale";
      note.setAttribute("role", "status");
      main.prepend(note);
    }
    const text = `Not updated since ${refreshedAt.toLocaleTimeString("en-GB")}: the server does not respond. Trying again.`;
    if (note.textContent !== text) note.textContent = text;
  }

  function update(page) {
    let changed = false;
    for (const next of parts(page)) {
      const html = content(next);
      const now = document.getElementById(next.id);
      if (!now || served.get(next.id) === html) continue;
      if (isBeingSelected(now) || isUnderPointer(now)) {
        etag = null; // ask for the whole page again
        continue;
      }
      served.set(next.id, html);
      swap(now, next);
      changed = true;
    }
    const newMain = page.querySelector("main[data-refresh-s]");
    if (newMain) main.dataset.refreshS = newMain.dataset.refreshS;
    if (changed) document.dispatchEvent(new CustomEvent("memagent:refreshed"));
  }

  function swap(now, next) {
    const open = [...now.querySelectorAll("details[open][id]")].map((item) => item.id);
    const focus = now.contains(document.activeElement) ? pathTo(now, document.activeElement) : null;
    const checked = [...now.querySelectorAll("input:checked[name][value]")].map((box) => [box.name, box.value]);
    const part = document.adoptNode(next);
    now.replaceWith(part);
    for (const [name, value] of checked) {
      const box = part.querySelector(`input[name="${CSS.escape(name)}"][value="${CSS.escape(value)}"]`);
      if (box) box.checked = true;
    }
    for (const id of open) part.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
    if (focus) follow(part, focus)?.focus({ preventScroll: true });
  }

  function isUnderPointer(part) {
    return performance.now() - pointedAt < POINTER_MS && part.matches(":hover");
  }

  function isBeingSelected(part) {
    const selection = getSelection();
    return Boolean(selection && !selection.isCollapsed && selection.containsNode(part, true));
  }

  // What the server sent, and not what copy.js added.
  function elements(part) {
    return [...part.querySelectorAll("*:not(.copyable, .copy)")];
  }

  // Remember the focus to restore it: the address of a link finds it even if rows have moved.
  function pathTo(part, element) {
    const href = element.getAttribute("href");
    return { href, index: elements(part).indexOf(element) };
  }

  function follow(part, { href, index }) {
    const all = elements(part);
    return (href && all.find((element) => element.getAttribute("href") === href)) || (part.tabIndex >= 0 ? part : all[index]);
  }

  document.addEventListener("pointermove", () => (pointedAt = performance.now()), { passive: true });
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));
  schedule();
})();
