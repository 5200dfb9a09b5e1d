// Durations, sizes and counts as text.  Pure except for the language.

import { counted, t } from "./texts.js";

const LEAST = 0.1; // seconds; chunks that arrived all at once have no rate

// Describe an answer: tokens, tokens per second, time to the first, prompt.  `usage` is what the
// server counted, missing if the answer was stopped before that.
export function describe({ usage, times }) {
  if (!times) return "";
  const count = usage?.completion ?? times.pieces;
  const tokens = counted("tokens", count);
  const parts = [usage ? tokens : t("about", { what: tokens })];
  if (times.took >= LEAST && count > 1) parts.push(t("rate", { rate: rounded((count - 1) / times.took) }));
  parts.push(t("first.after", { time: duration(1000 * times.wait) }));
  if (usage) parts.push(t("prompt.tokens", { count: usage.prompt }) + (usage.cached ? ` (${t("cached", { count: usage.cached })})` : ""));
  return parts.join(" · ");
}

export function duration(milliseconds) {
  if (milliseconds < 9.95) return `${milliseconds.toFixed(1)} ms`;
  if (milliseconds < 999.5) return `${milliseconds.toFixed(0)} ms`;
  return `${(milliseconds / 1000).toFixed(2)} s`;
}

// Format a size: "640 kB", "98 MB", "1.2 GB".
export function size(bytes) {
  const [unit, value] = [["GB", 1e9], ["MB", 1e6]].find(([, least]) => bytes >= 0.9995 * least) ?? ["kB", 1e3];
  return `${rounded(bytes / value)} ${unit}`;
}

// Format a number with about three digits: 0.25, 3.1, 42, 1,234, 56.7k.
export function rounded(value) {
  if (value === 0) return "0";
  if (value < 1) return value.toFixed(2);
  if (value < 9.95) return value.toFixed(1);
  if (value < 10000) return Math.round(value).toLocaleString("en");
  if (value < 999500) return `${(value / 1000).toFixed(1)}k`;
  return `${(value / 1e6).toFixed(1)}M`;
}
