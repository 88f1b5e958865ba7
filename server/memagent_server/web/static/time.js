// Show each <time> by its age, or by how long it is until then, with the reader's local time and UTC as tooltip. Without this script it is in UTC.
"use strict";

(() => {
  const EVERY_MS = 5000;
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

  // At most two units, like memagent.units.format_duration.
  function duration(seconds) {
    const total = Math.round(seconds);
    if (total < 90) return `${total} s`;
    if (total < 5400) return `${Math.round(total / 60)} min`;
    const [unit, part, of] = total < 172_800 ? ["h", "min", 60] : ["d", "h", 24];
    const parts = Math.round(total / (unit === "h" ? 60 : 3600));
    const rest = parts % of;
    return `${Math.floor(parts / of)} ${unit}${rest ? ` ${rest} ${part}` : ""}`;
  }

  // A clock may be a little ahead of the server's.
  function age(seconds) {
    if (seconds < -60) return `in ${duration(-seconds)}`;
    return seconds < 5 ? "just now" : `${duration(seconds)} ago`;
  }

  function show() {
    const now = Date.now();
    for (const element of document.querySelectorAll("time[datetime]")) {
      const at = new Date(element.dateTime);
      const text = age((now - at) / 1000);
      if (element.textContent !== text) element.textContent = text;
      if (!element.title) element.title = `${local.format(at)} (${element.dateTime.slice(0, 19).replace("T", " ")} UTC)`;
    }
  }

  document.addEventListener("memagent:refreshed", show);
  setInterval(() => document.hidden || show(), EVERY_MS);
  document.addEventListener("visibilitychange", show);
  show();
})();
