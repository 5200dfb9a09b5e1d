// Colours of code.  highlight.js is loaded when there is code; it yields scopes of texts, of which
// elements are made, never markup.

import { make } from "../make.js";
import { languageOf, withInner } from "./languages.js";

const MAX_LENGTH = 50000; // characters; longer code is not coloured
const FOLDER = new URL("../vendor/highlight/", import.meta.url);
let highlighter = null;
const ready = new Set(); // languages
const loading = new Map(); // language: promise

// Colour the text of an element, written in the language called `name`; at once if it is loaded.
export function colour(element, name) {
  const language = languageOf(name);
  if (!language || element.textContent.length > MAX_LENGTH) return;
  if (ready.has(language)) return paint(element, language);
  if (!loading.has(language)) loading.set(language, load(language));
  loading.get(language).then(() => ready.has(language) && element.isConnected && paint(element, language));
}

function paint(element, language) {
  const { _emitter: scopes } = highlighter.highlight(element.textContent, { language, ignoreIllegals: true });
  element.replaceChildren(scopes.root);
}

// Code stays as it is where the library cannot be loaded.
async function load(language) {
  try {
    highlighter ??= opened((await import(new URL("core.js", FOLDER))).default);
    await Promise.all(withInner(language).map(async (name) => {
      const { default: grammar } = await import(new URL(`languages/${name}.js`, FOLDER));
      highlighter.registerLanguage(name, grammar);
    }));
    ready.add(language);
  } catch (error) {
    console.info(`no colours for ${language}: ${error.message}`);
    loading.delete(language);
  }
}

function opened(library) {
  const made = library.newInstance();
  made.configure({ __emitter: Scopes });
  return made;
}

// What highlight.js reports while it reads, as elements.
class Scopes {
  root = document.createDocumentFragment();
  #open = [this.root];

  addText(text) {
    this.#open.at(-1).append(text);
  }

  openNode(scope) {
    const made = make("span", `in-${/^[a-z_]*/.exec(scope)[0]}`);
    this.#open.at(-1).append(made);
    this.#open.push(made);
  }

  closeNode() {
    if (this.#open.length > 1) this.#open.pop();
  }

  startScope(scope) {
    this.openNode(scope);
  }

  endScope() {
    this.closeNode();
  }

  __addSublanguage({ root }) {
    this.#open.at(-1).append(root);
  }

  finalize() {
    this.#open.length = 1;
  }

  toHTML() {
    return "";
  }
}
