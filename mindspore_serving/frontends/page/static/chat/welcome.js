// Content of a conversation before its first question.

import { button, make } from "../make.js";
import { t } from "../texts.js";

const QUESTIONS = ["suggest.explain", "suggest.code", "suggest.write"];

// `suggest` gets the text of the chosen question.
export function welcome(suggest) {
  const box = make("div", "welcome");
  const row = make("div", "suggestions");
  for (const key of QUESTIONS) row.append(button(t(key), () => suggest(t(key))));
  box.append(make("p", "greeting", t("welcome")), row);
  return box;
}
