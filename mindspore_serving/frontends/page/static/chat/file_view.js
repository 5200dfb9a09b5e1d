// Files of messages on the page.

import { make } from "../make.js";
import { number, t } from "../texts.js";

// Return the name of a file, and its text when it is opened.
export function showFile({ name, text }) {
  const box = make("details", "file");
  const head = make("summary");
  head.append(make("span", "", name), " ", make("span", "hint", t("file.length", { count: number(text.length) })));
  box.append(head);
  box.addEventListener("toggle", () => box.append(make("pre", "", text)), { once: true });
  return box;
}
