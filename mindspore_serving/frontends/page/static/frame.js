// Frame around the views: texts, language, theme, and the list that a phone opens.

import { keep, recall } from "./kept.js";
import { icon } from "./make.js";
import { NAMES, choose, language, t, translate } from "./texts.js";

const THEMES = { system: "auto", light: "sun", dark: "moon" }; // and their pictures
const TITLES = { system: "theme.system", light: "theme.light", dark: "theme.dark" };
const find = (id) => document.getElementById(id);

export function showFrame() {
  document.documentElement.lang = language;
  translate(document);
  for (const one of document.querySelectorAll("[data-icon]")) one.prepend(icon(one.dataset.icon));
  showLanguages();
  showTheme(recall("theme", "system"));
  find("theme").addEventListener("click", nextTheme);
  find("menu")?.addEventListener("click", () => {
    const isOpen = document.body.classList.toggle("listing");
    find("menu").setAttribute("aria-expanded", isOpen);
  });
}

function showLanguages() {
  find("language").append(...Object.entries(NAMES).map(([id, name]) => new Option(name, id)));
  find("language").value = language;
  find("language").addEventListener("change", () => {
    choose(find("language").value);
    location.reload();
  });
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(recall("theme", "system")) + 1) % names.length];
  keep("theme", next);
  showTheme(next);
}

function showTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  find("theme").replaceChildren(icon(THEMES[name]));
  find("theme").setAttribute("aria-label", t(TITLES[name]));
  find("theme").title = t(TITLES[name]);
}
