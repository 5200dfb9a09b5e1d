// Tool calls in an answer, and the results that the user enters.

import { button, make } from "../make.js";
import { t } from "../texts.js";

// Return an element for a call with the arguments received so far.
export function showCall({ name, arguments: given }) {
  const box = make("div", "call");
  const pre = make("pre", "", pretty(given));
  pre.tabIndex = 0;
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", t("call.arguments", { name }));
  box.append(make("p", "who", t("call.of")), make("code", "call-name", name), pre);
  return box;
}

// Return a form for the results of `calls`; `send` gets a message for each.
export function resultForm(calls, send) {
  const form = make("form", "results");
  const areas = calls.map((call) => resultArea(call, form));
  const submit = button(t("call.send"), () => form.requestSubmit(), "main");
  form.append(submit);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(calls.map(({ id, name }, at) => ({ role: "tool", callId: id, name, content: areas[at].value })));
  });
  return form;
}

function resultArea({ name }, form) {
  const label = make("label", "", t("call.result", { name }));
  const area = make("textarea");
  area.rows = 2;
  label.append(area);
  form.append(label);
  return area;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
