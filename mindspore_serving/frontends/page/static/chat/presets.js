// Settings of the chat, and named presets of them.  Pure.

import { NUMBERS } from "./numbers.js";

export const TEXTS = ["system", "stop", "schema", "tools"];
export const DEFAULTS = {
  ...Object.fromEntries([...TEXTS, ...NUMBERS].map((name) => [name, ""])),
  logprobs: false,
};

// Built-in presets set numbers only; "" is the server's default.
export const BUILT_IN = {
  default: {},
  exact: { temperature: "0" },
  balanced: { temperature: "0.7", top_p: "0.9" },
  creative: { temperature: "1.1", top_p: "0.95" },
};

export function applyBuiltIn(settings, name) {
  const none = Object.fromEntries(NUMBERS.map((one) => [one, ""]));
  return { ...settings, ...none, ...BUILT_IN[name] };
}

// Return settings from the browser's storage, which another version of the page may have written.
export function toSettings(kept) {
  const made = { ...DEFAULTS };
  for (const [name, value] of Object.entries(kept ?? {})) {
    if (typeof value === typeof made[name] && isUsable(name, value)) made[name] = value;
  }
  return made;
}

function isUsable(name, value) {
  return !NUMBERS.includes(name) || Number.isFinite(Number(value));
}

// Return what differs from the server's defaults, as [name, value].
export function changes(settings) {
  return Object.entries(settings).filter(([name, value]) => value !== DEFAULTS[name] && String(value).trim());
}
