// Theme: light, dark or the system's.  A classic script, so that it runs before the first paint.

const THEME = "mindspore-serving-theme";

function showTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}

function keptTheme() {
  try {
    return JSON.parse(localStorage.getItem(THEME)) ?? "system";
  } catch {
    return "system"; // a private window may refuse
  }
}

showTheme(keptTheme());
