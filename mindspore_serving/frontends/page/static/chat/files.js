// Text files of messages: {name, text}, and how a model gets them.  Pure.

export const MAX_TEXT_BYTES = 1e6;

const BROKEN = /\0/; // never in a text

// Return the text of a file's bytes; null if it is not UTF-8, nor UTF-16 with a mark of its order.
export function toText(bytes) {
  const [first, second] = bytes;
  const encoding = { "255,254": "utf-16le", "254,255": "utf-16be" }[[first, second]] ?? "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    return BROKEN.test(text) ? null : text.replaceAll("\r\n", "\n");
  } catch {
    return null;
  }
}

// Return a message's text with its files before it, each a block of code below its name.
export function withFiles(content, files = []) {
  return [...files.map(block), ...(content ? [content] : [])].join("\n\n");
}

function block({ name, text }) {
  const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
  const extension = /\.(\w{1,12})$/.exec(name)?.[1] ?? "";
  return `${name}:\n${fence}${extension === "pdf" ? "" : extension}\n${text.replace(/\n$/, "")}\n${fence}`;
}
