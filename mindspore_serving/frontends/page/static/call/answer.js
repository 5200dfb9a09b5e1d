// Answer to a call: a table of its instances, with images, or the text of the error.

import { make } from "../make.js";
import { counted, t } from "../texts.js";
import { picture } from "./picture.js";

const MOST = 160; // characters of a value

// Return elements for a reply of `status` with the body `text`.
export function showAnswer(status, text, milliseconds) {
  const json = parsed(text);
  const head = make("p", "hint", t("call.took", { status, time: Math.round(milliseconds) }));
  const raw = make("details");
  const pre = make("pre", "", json === undefined ? text : JSON.stringify(json, null, 1).slice(0, 20000));
  pre.tabIndex = 0;
  raw.append(make("summary", "", t("call.raw")), pre);
  if (!Array.isArray(json?.instances)) return [head, fault(json?.error_msg ?? json?.error?.message ?? json?.error ?? text), raw];
  return [head, table(json.instances), raw];
}

// Return an error in place of the answer.
export function fault(text) {
  const made = make("p", "error", typeof text === "string" ? text : JSON.stringify(text));
  made.setAttribute("role", "alert");
  return made;
}

function table(instances) {
  const box = make("div", "wide-table");
  const made = make("table");
  for (const one of instances) {
    for (const [name, value] of Object.entries(one ?? {})) {
      const row = made.insertRow();
      const head = make("th", "", name);
      head.scope = "row";
      const cell = make("td");
      cell.append(picture(value) ?? shown(value));
      row.append(head, cell);
    }
  }
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", t("table"));
  box.append(made);
  return box;
}

function shown(value) {
  if (typeof value === "string") return value;
  const text = JSON.stringify(value);
  if (text.length <= MOST) return text;
  if (!Array.isArray(value)) return `${text.slice(0, MOST)} …`;
  const short = JSON.stringify(value, (_, one) => (typeof one === "number" ? Number(one.toPrecision(4)) : one));
  return `${short.slice(0, MOST).replaceAll(",", ", ")} … (${counted("numbers", value.flat(Infinity).length)})`;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
