// Markdown to a tree of tokens; LaTeX formulas are left unchanged.  Pure.

import { Marked } from "../vendor/marked.js";

// Where a formula may begin, and the complete formula from there.
const BLOCK = [/(?:^|\n)(?:\$\$|\\\[)/, /^(?:\$\$[^]+?\$\$|\\\[[^]+?\\\])/];
const INLINE = [/\$|\\\(/, /^(?:\$\$[^]+?\$\$|\\\([^]+?\\\)|\$(?![\s$])[^$\n]*?[^\s\\$]\$(?!\d))/];

function formulas(level, [begin, whole]) {
  return {
    name: `formula-${level}`,
    level,
    start: (text) => text.match(begin)?.index,
    tokenizer(text) {
      const raw = text.match(whole)?.[0];
      return raw && { type: `formula-${level}`, raw, text: raw };
    },
  };
}

const marked = new Marked({ gfm: true, breaks: true });
marked.use({ extensions: [formulas("block", BLOCK), formulas("inline", INLINE)] });

export function lex(text) {
  return marked.lexer(text);
}

const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

// Return text with the common character references resolved.
export function decode(text) {
  return text.replace(/&(?:#(\d{1,6})|#x([\da-f]{1,5})|(\w+));/gi, (whole, decimal, hex, name) => {
    if (name) return NAMED[name.toLowerCase()] ?? whole;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code < 0x110000 ? String.fromCodePoint(code) : whole;
  });
}

// Return a URL that a link may have; null for javascript: and the like.
export function safeAddress(text) {
  return /^(?:https?:\/\/|mailto:)/i.test(text) ? text : null;
}
