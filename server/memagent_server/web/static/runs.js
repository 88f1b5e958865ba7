// The list of runs: choosing a status searches at once.
"use strict";

document.querySelector(".filters select")?.addEventListener("change", (event) => event.target.form.requestSubmit());
