// Form for the inputs of a method, built from its signature.

import { iconButton, make } from "../make.js";
import { t } from "../texts.js";
import { example, fold, fromGrid, fromText, gridOf, kindOf, limitsOf } from "./fields.js";

// Return {element, values()}: `values` are those of code.js, and throw SyntaxError for invalid input.
// `changed()` is called at every change.
export function inputForm(specs, changed) {
  const element = make("div", "inputs");
  const [shown, folded] = fold(specs);
  const made = new Map(specs.map((spec) => [spec, field(spec, changed)]));
  element.append(...shown.map((spec) => made.get(spec).element));
  if (folded.length) {
    const box = make("details", "more");
    const inner = make("div", "inputs");
    inner.append(...folded.map((spec) => made.get(spec).element));
    box.append(make("summary", "", t("more.inputs", { count: folded.length })), inner);
    element.append(box);
  }
  const fields = [...made];
  const values = () => Object.fromEntries(fields.map(([spec, one]) => [spec.name, one.value()]).filter(([, value]) => value !== null));
  return { element, values };
}

function field(spec, changed) {
  const kind = kindOf(spec);
  const made = (MAKERS[kind] ?? text)(spec, kind, changed);
  const box = make("fieldset", `input ${kind}`);
  const type = [spec.dtype ?? spec.schema?.type, spec.shape?.length ? `[${spec.shape.map((size) => size ?? "?").join(", ")}]` : ""].join(" ");
  const title = make("legend", "", spec.name);
  title.append(make("span", "hint", ` ${type}${spec.optional ? ` ${t("optional")}` : ""}`));
  box.append(title, ...made.parts);
  box.addEventListener("input", changed);
  return { element: box, value: made.value };
}

const MAKERS = { number, grid, bool, file, any: anything };

function text(spec, kind) {
  const area = make("textarea", kind === "json" ? "mono" : "");
  area.rows = spec.optional ? 1 : 2;
  return typed(spec, kind, area);
}

function number(spec, kind) {
  const input = make("input");
  const { min, max, step, value } = limitsOf(spec);
  Object.assign(input, { type: "number", min, max, step, placeholder: value });
  const { parts, value: given } = typed(spec, kind, input);
  const words = range(limitsOf(spec));
  if (words) parts.push(make("p", "hint", words));
  if (spec.schema?.description) input.title = spec.schema.description;
  return { parts, value: given };
}

function typed(spec, kind, area) {
  area.value = spec.optional ? "" : example(spec, kind);
  area.setAttribute("aria-label", spec.name);
  const value = () => (spec.optional && !area.value ? null : { json: fromText(spec, kind, area.value) });
  return { parts: [area], value };
}

// Describe a range: "0 to 100, default 1".
function range({ min, max, over, value }) {
  const words = [];
  if (min !== "" && max !== "" && !over) words.push(t("range.both", { low: min, high: max }));
  else if (min !== "") words.push(t(over ? "range.over" : "range.from", { low: min }));
  if (max !== "" && (min === "" || over)) words.push(t("range.to", { high: max }));
  if (value !== "") words.push(t("range.default", { value }));
  return words.join(", ");
}

function bool(spec) {
  const box = make("input");
  box.type = "checkbox";
  box.setAttribute("aria-label", spec.name);
  return { parts: [box], value: () => ({ json: box.checked }) };
}

function grid(spec, kind) {
  const [rows, columns] = gridOf(spec);
  const table = make("div", "grid");
  table.style.gridTemplateColumns = `repeat(${columns}, minmax(3rem, 6rem))`;
  const cells = Array.from({ length: rows * columns }, (_, at) => {
    const cell = make("input");
    cell.inputMode = "decimal";
    cell.value = example(spec, kind);
    cell.setAttribute("aria-label", `${spec.name} ${Math.floor(at / columns) + 1}, ${(at % columns) + 1}`);
    return cell;
  });
  table.append(...cells);
  return { parts: [table], value: () => ({ json: fromGrid(spec, cells.map((one) => one.value)) }) };
}

// Input for a file that is dropped, pasted or chosen.
function file(spec, _, changed) {
  let given = null;
  const input = make("input");
  const drop = make("label", "drop");
  const said = make("span", "", t("drop"));
  input.type = "file";
  input.setAttribute("aria-label", spec.name);
  const take = async (one) => {
    if (!one) return;
    given = { file: one.name, b64: await toBase64(one) };
    said.textContent = one.name;
    changed();
  };
  input.addEventListener("change", () => take(input.files[0]));
  drop.addEventListener("dragover", (event) => event.preventDefault());
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
  drop.append(said, input);
  const value = () => {
    if (!given && !spec.optional) throw new SyntaxError(t("file.missing", { name: spec.name }));
    return given;
  };
  return { parts: [drop], value };
}

// Input for a text or JSON, or a file in its place.
function anything(spec, kind, changed) {
  const written = text(spec, kind);
  const chosen = file(spec, kind, changed);
  const [drop] = chosen.parts;
  drop.hidden = true;
  const swap = iconButton("upload", t("file.instead", { name: spec.name }), () => {
    drop.hidden = !drop.hidden;
    written.parts[0].hidden = !drop.hidden;
    changed();
  });
  const row = make("div", "row");
  row.append(...written.parts, drop, swap);
  return { parts: [row], value: () => (drop.hidden ? written.value() : chosen.value()) };
}

function toBase64(one) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(one);
  });
}
