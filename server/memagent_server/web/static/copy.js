// A button on each block of code that copies it. Where the browser gives pages no clipboard (plain HTTP), the text is selected and copied as by the keyboard.
"use strict";

const SHOWN_MS = 1500;

function prepare() {
  const focused = document.activeElement;
  for (const block of document.querySelectorAll("pre:not(.copyable > pre, #console pre)")) {
    const box = Object.assign(document.createElement("div"), { className: "copyable" });
    const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Copy" });
    button.setAttribute("aria-live", "polite"); // the result replaces its name
    button.addEventListener("click", () => copy(block, button));
    block.replaceWith(box);
    box.append(block, button);
  }
  if (document.activeElement !== focused) focused?.focus({ preventScroll: true }); // a move takes it
}

async function copy(block, button) {
  const text = textOf(block);
  button.textContent = (await write(text)) ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = "Copy"), SHOWN_MS);
}

// Without the numbers of lines, each of which may be a block of its own.
function textOf(block) {
  const code = block.cloneNode(true);
  for (const number of code.querySelectorAll(".source-number")) number.remove();
  const lines = [...code.querySelectorAll(".source-line")];
  return lines.length ? lines.map((line) => line.textContent).join("\n") : code.textContent.trim();
}

async function write(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    const field = Object.assign(document.createElement("textarea"), { value: text, className: "visually-hidden" });
    document.body.append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    focused?.focus({ preventScroll: true });
    return isCopied;
  }
}

document.addEventListener("memagent:refreshed", prepare);
prepare();
