// Number of tokens that a conversation uses of the model's context.  Pure.

const ASCII = 4; // characters of a token, about
const WIDE = 1.5; // of other scripts
const MARKERS = 4; // tokens of a chat template around a message, about

// Return {count, isExact}: what the server counted for the last answer, and an estimate of what
// came after that.
export function tokensOf(messages) {
  const at = messages.findLastIndex((one) => one.usage);
  const { prompt = 0, completion = 0 } = messages[at]?.usage ?? {};
  const behind = messages.slice(at + 1);
  return { count: prompt + completion + behind.reduce((sum, one) => sum + estimate(one), 0), isExact: behind.length === 0 };
}

function estimate({ content, files = [] }) {
  const texts = [content, ...files.map((one) => one.text)];
  return MARKERS + texts.reduce((sum, text) => sum + estimateText(text), 0);
}

// Estimate the tokens of a text; those of an answer are at least its chunks, which may have several.
export function estimateText(text) {
  const wide = text.replace(/[\0-\x7f]+/g, "").length;
  return Math.ceil((text.length - wide) / ASCII + wide / WIDE);
}
