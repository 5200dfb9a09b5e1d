// Texts of the page in the user's language: one table per language.

import { keep, recall } from "./kept.js";
import en from "./texts/en.js";
import zh from "./texts/zh.js";

const TABLES = { en, zh };
const ATTRIBUTES = ["aria-label", "placeholder", "title"];

export const NAMES = { en: "English", zh: "中文" };
export const language = chosen();

function chosen() {
  const kept = recall("language", "");
  if (kept in TABLES) return kept;
  return globalThis.navigator?.language?.startsWith("zh") ? "zh" : "en";
}

// Takes effect when the page is loaded again.
export function choose(name) {
  keep("language", name);
}

// Return the text of a key, with `values` in place of their {names}.
export function t(key, values = {}) {
  const text = TABLES[language][key];
  if (text === undefined) throw new Error(`there is no text ${key}`);
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

// Return a count in its plural form: the key is `stem.one` or `stem.other`.
export function counted(stem, count) {
  return t(`${stem}.${count === 1 ? "one" : "other"}`, { count: number(count) });
}

export function number(value) {
  return value.toLocaleString("en");
}

// Fill in elements that have a key: data-t is the text, data-t-title and the like are attributes.
export function translate(root) {
  for (const one of root.querySelectorAll("[data-t]")) one.textContent = t(one.dataset.t);
  for (const name of ATTRIBUTES) {
    for (const one of root.querySelectorAll(`[data-t-${name}]`)) {
      one.setAttribute(name, t(one.getAttribute(`data-t-${name}`)));
    }
  }
}
