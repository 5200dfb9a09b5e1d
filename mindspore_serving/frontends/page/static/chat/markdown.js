// Markdown as elements, created one by one: text is never parsed as HTML, HTML in an
// answer is shown as text, and images of other hosts become links.

import { copyButton } from "../copy.js";
import { make } from "../make.js";
import { t } from "../texts.js";
import { colour } from "./colours.js";
import { draw } from "./formulas.js";
import { decode, lex, safeAddress } from "./lexer.js";

const OPEN = 3; // tokens at the end that more text may change
const PATIENCE = 12; // how many times as long as it took until the next look at long text

export class MarkdownView {
  node = make("div", "said markdown");
  #settled = 0; // characters whose elements do not change any more
  #shown = ""; // the text
  #open = []; // elements of the others
  #rest = 0; // until when to wait

  // Show `text`; if it continues the text shown, only its end is rendered again.
  show(text, isLast = true) {
    if (performance.now() < this.#rest && !isLast) return;
    if (!text.startsWith(this.#shown)) this.#clear();
    if (text === this.#shown) return;
    const began = performance.now();
    this.#shown = text;
    const tokens = lex(text.slice(this.#settled));
    for (const one of this.#open) one.remove();
    this.#open = [];
    tokens.forEach((token, at) => this.#add(token, at < tokens.length - OPEN));
    this.#rest = began + PATIENCE * (performance.now() - began);
  }

  #add(token, isSettled) {
    const made = block(token);
    if (made) this.node.append(made);
    if (isSettled) this.#settled += token.raw.length;
    else if (made) this.#open.push(made);
  }

  #clear() {
    this.node.replaceChildren();
    this.#settled = 0;
    this.#shown = "";
    this.#open = [];
  }
}

const BLOCKS = {
  space: () => null,
  def: () => null,
  hr: () => make("hr"),
  heading: (token) => filled(make("p", `heading depth${token.depth}`), token.tokens),
  paragraph: (token) => filled(make("p"), token.tokens),
  text: (token) => filled(make("span"), token.tokens ?? [token]),
  blockquote: (token) => blocks(make("blockquote"), token.tokens),
  code,
  list,
  table,
  "formula-block": (token) => formula("p", token.text.trim()),
};

function block(token) {
  return BLOCKS[token.type]?.(token) ?? (token.type === "space" || token.type === "def" ? null : make("p", "", token.raw.trim()));
}

function blocks(parent, tokens) {
  for (const token of tokens) {
    const made = block(token);
    if (made) parent.append(made);
  }
  return parent;
}

function code({ text, lang }) {
  const box = make("div", "code");
  const bar = make("div", "code-bar");
  const pre = make("pre");
  const name = (lang ?? "").split(/\s/)[0];
  bar.append(make("span", "", name), copyButton(() => text, t("copy.code")));
  pre.tabIndex = 0; // long lines scroll
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", name ? t("code.of", { language: name }) : t("code"));
  const inner = make("code", "", text);
  colour(inner, name);
  pre.append(inner);
  box.append(bar, pre);
  return box;
}

function list(token) {
  const made = make(token.ordered ? "ol" : "ul");
  if (token.ordered && token.start !== 1) made.start = token.start;
  for (const item of token.items) {
    const line = make("li", item.task ? "task" : "");
    if (item.task) line.append(item.checked ? "☑ " : "☐ ");
    made.append(blocks(line, item.tokens.filter((one) => one.type !== "checkbox")));
  }
  return made;
}

function table(token) {
  const made = make("table");
  const rows = [token.header, ...token.rows];
  rows.forEach((cells, row) => {
    const line = made.insertRow();
    for (const cell of cells) {
      line.append(filled(make(row ? "td" : "th", cell.align ? `align-${cell.align}` : ""), cell.tokens));
    }
  });
  const box = make("div", "wide-table");
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", t("table"));
  box.append(made);
  return box;
}

const INLINES = {
  text: (token) => (token.tokens ? filled(make("span"), token.tokens) : decode(token.text)),
  escape: (token) => token.text,
  br: () => make("br"),
  codespan: (token) => make("code", "", token.text),
  strong: (token) => filled(make("strong"), token.tokens),
  em: (token) => filled(make("em"), token.tokens),
  del: (token) => filled(make("del"), token.tokens),
  link: (token) => link(token.href, filled(make("a"), token.tokens)),
  image: (token) => link(token.href, make("a", "", token.text || token.href)),
  "formula-inline": (token) => formula("span", token.text),
};

function formula(tag, text) {
  const made = make(tag, "formula", text);
  draw(made);
  return made;
}

function filled(parent, tokens) {
  for (const token of tokens) parent.append(INLINES[token.type]?.(token) ?? token.raw);
  return parent;
}

function link(address, made) {
  const safe = safeAddress(address);
  if (safe === null) return made.textContent;
  made.href = safe;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  return made;
}
