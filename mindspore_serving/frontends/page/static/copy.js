// Copying text, also where the clipboard API is missing (no https).

import { iconButton, icon, make } from "./make.js";
import { t } from "./texts.js";

const SHOWN = 1500; // milliseconds

// Return a button that copies the result of `text()`.
export function copyButton(text, name = t("copy")) {
  const made = iconButton("copy", name, async () => {
    const isDone = await copy(text());
    made.replaceChildren(icon(isDone ? "check" : "close"));
    made.setAttribute("aria-label", isDone ? t("copied") : t("copy.failed"));
    setTimeout(() => {
      made.replaceChildren(icon("copy"));
      made.setAttribute("aria-label", name);
    }, SHOWN);
  }, "copy");
  return made;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text) {
  const before = document.activeElement;
  const area = make("textarea", "unseen");
  area.value = text;
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  before?.focus();
  return isDone;
}
