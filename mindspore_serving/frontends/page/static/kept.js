// Small settings, stored as JSON in the browser; where it refuses, they last as long as the page.

const PREFIX = "mindspore-serving-";

export function recall(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // private windows may refuse
  }
}
