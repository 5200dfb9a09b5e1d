// JSON schemas as lists of fields; nested fields open one by one.

import { make } from "../make.js";

// Resolve a reference.
export function schemaOf(whole, schema) {
  let found = schema;
  while (found.$ref) {
    found = found.$ref.slice(2).split("/").reduce((at, name) => at[name], whole);
  }
  return found;
}

export function showSchema(whole, schema) {
  const found = schemaOf(whole, schema);
  const inner = fieldsOf(whole, found);
  return inner ? fields(whole, inner) : make("p", "about", kindOf(whole, found) + about(found));
}

// Return the schema below `schema` that has fields: itself, its items or an alternative.
function fieldsOf(whole, schema) {
  const found = schemaOf(whole, schema);
  if (found.properties) return found;
  for (const one of [found.items, ...(found.anyOf ?? [])]) {
    const inner = one && fieldsOf(whole, one);
    if (inner) return inner;
  }
  return null;
}

function fields(whole, schema) {
  const list = make("ul", "fields");
  for (const [name, given] of Object.entries(schema.properties)) {
    list.append(field(whole, name, given, schema.required?.includes(name)));
  }
  return list;
}

function field(whole, name, given, isNeeded) {
  const found = schemaOf(whole, given);
  const line = make("li");
  const words = make("span", "kind", kindOf(whole, found) + about(found));
  const inner = fieldsOf(whole, found);
  const title = inner ? make("summary") : line;
  title.append(make("code", "", name), isNeeded ? make("span", "needed", " *") : "", words);
  if (!inner) return line;
  const box = make("details");
  box.append(title);
  box.addEventListener("toggle", () => box.append(fields(whole, inner)), { once: true });
  line.append(box);
  return line;
}

// Return a short text for the type: "integer or null", "array of string".
function kindOf(whole, schema) {
  const found = schemaOf(whole, schema);
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.enum) return found.enum.map((one) => JSON.stringify(one)).join(" or ");
  if (found.anyOf) return [...new Set(found.anyOf.map((one) => kindOf(whole, one)))].join(" or ");
  if (Array.isArray(found.type)) return found.type.join(" or ");
  if (found.type === "array") return `array of ${found.items ? kindOf(whole, found.items) : "any"}`;
  return found.type ?? "any";
}

function about({ description, minimum, exclusiveMinimum, maximum, default: value }) {
  const words = [];
  if (minimum > -(2 ** 53)) words.push(`from ${minimum}`);
  if (exclusiveMinimum !== undefined) words.push(`over ${exclusiveMinimum}`);
  if (maximum < 2 ** 53) words.push(`to ${maximum}`);
  if (value !== undefined && value !== null) words.push(`default ${JSON.stringify(value)}`);
  if (description) words.push(description);
  return words.length ? `: ${words.join(", ")}` : "";
}
