// Times and counts of an answer, in words.  Pure.

const LEAST = 0.1; // seconds; of pieces that came all at once no speed can be told

// `times`: sent, first, last in milliseconds, first 0 if nothing came; `pieces` that came; `usage`
// as the server counted, null if it was stopped before it could.
export function describe({ sent, first, last, pieces, usage }) {
  if (!first) return "";
  const count = usage?.completion_tokens ?? pieces;
  const tokens = `${usage ? "" : "about "}${count} token${count === 1 ? "" : "s"}`;
  const seconds = (last - first) / 1000;
  const rate = seconds >= LEAST && count > 1 ? `${rounded((count - 1) / seconds)} tokens/s` : "";
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  const prompt = usage
    ? `prompt ${usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""}`
    : "";
  const parts = [tokens, rate, `first after ${duration(first - sent)}`, prompt];
  return parts.filter(Boolean).join(" · ");
}

export function duration(milliseconds) {
  if (milliseconds < 9.95) return `${milliseconds.toFixed(1)} ms`;
  if (milliseconds < 999.5) return `${milliseconds.toFixed(0)} ms`;
  return `${(milliseconds / 1000).toFixed(2)} s`;
}

// A number in about three digits: 0.25, 3.1, 42, 1,234, 56.7k.
export function rounded(value) {
  if (value === 0) return "0";
  if (value < 1) return value.toFixed(2);
  if (value < 9.95) return value.toFixed(1);
  if (value < 10000) return Math.round(value).toLocaleString("en");
  if (value < 999500) return `${(value / 1000).toFixed(1)}k`;
  return `${(value / 1e6).toFixed(1)}M`;
}
