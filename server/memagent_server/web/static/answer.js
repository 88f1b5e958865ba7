// The answer to a form: a reload shows the page, instead of sending the form again.
"use strict";

history.replaceState(null, "", location.href);
