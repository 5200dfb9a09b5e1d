// LaTeX formulas as MathML.  Temml is loaded when there is a formula; it creates elements, never
// markup, and \href and the like are refused.

import { make } from "../make.js";

const MAX_LENGTH = 4000; // characters; a longer formula is shown as it was written
const FOLDER = new URL("../vendor/temml/", import.meta.url);
const OPTIONS = { throwOnError: true, trust: false, annotate: true, maxExpand: 500, maxSize: [10, 50], wrap: "none" };
let temml = null;
let loading = null;

// Draw the formula that an element shows as `$…$`, `$$…$$`, `\(…\)` or `\[…\]`; at once if Temml is
// loaded.  What Temml cannot read stays as it was written.
export function draw(element) {
  if (element.textContent.length > MAX_LENGTH) return;
  if (temml) return render(element);
  loading ??= load();
  loading.then(() => temml && element.isConnected && render(element));
}

function render(element) {
  const { tex, displayMode } = parts(element.textContent.trim());
  const drawn = make("span");
  try {
    temml.render(tex, drawn, { ...OPTIONS, displayMode });
  } catch {
    return;
  }
  element.replaceChildren(...drawn.childNodes);
  element.classList.add("drawn");
}

function parts(text) {
  const size = text.startsWith("$") && !text.startsWith("$$") ? 1 : 2;
  return { tex: text.slice(size, -size), displayMode: /^(?:\$\$|\\\[)/.test(text) };
}

async function load() {
  try {
    const style = make("link");
    style.rel = "stylesheet";
    style.href = new URL("temml.css", FOLDER);
    document.head.append(style);
    temml = (await import(new URL("temml.js", FOLDER))).default;
  } catch (error) {
    console.info(`formulas are not drawn: ${error.message}`);
    loading = null;
  }
}
