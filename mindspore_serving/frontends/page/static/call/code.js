// The same call as a program.  Pure.  `values` are those of fields.js by name.

import { quoted } from "./example.js";

const MARK = (at) => `\u0001${at}\u0001`; // for a file, until it has its expression

// Return {curl, python, javascript}; files are read from the program's directory.
export function programs(url, values) {
  const files = Object.values(values).filter((one) => one.file).map((one) => one.file);
  return { curl: curl(url, body(values), files), python: python(url, values), javascript: javascript(url, body(values), files) };
}

export function instance(values) {
  const toJson = (one) => (one.file ? { b64: one.b64 } : one.json);
  return Object.fromEntries(Object.entries(values).map(([name, one]) => [name, toJson(one)]));
}

// Return the body as text, with a mark in place of each file.
function body(values) {
  let at = 0;
  const marked = Object.entries(values).map(([name, one]) => [name, one.file ? { ...one, b64: MARK(at++) } : one]);
  return JSON.stringify({ instances: [instance(Object.fromEntries(marked))] }).replaceAll("\\u0001", "\u0001");
}

function curl(url, text, files) {
  const head = `curl ${quoted(url)} -H 'content-type: application/json'`;
  if (!files.length) return `${head} -d ${quoted(text)}`;
  const fill = (shell, file, at) => shell.replace(MARK(at), () => `'"$(base64 < ${quoted(file)} | tr -d '\\n')"'`);
  return `printf %s ${files.reduce(fill, quoted(text))} | ${head} -d @-`;
}

function python(url, values) {
  const lines = Object.entries(values).map(([name, one]) => `    ${JSON.stringify(name)}: ${expression(one)},`);
  const hasFile = Object.values(values).some((one) => one.file);
  return [
    ...(hasFile ? ["import base64"] : []),
    "import json", "import urllib.request", "", "instance = {", ...lines, "}",
    'body = json.dumps({"instances": [instance]}).encode()',
    `request = urllib.request.Request(${JSON.stringify(url)}, body, {"content-type": "application/json"})`,
    "print(json.load(urllib.request.urlopen(request)))",
  ].join("\n");
}

function expression({ file, json }) {
  if (file) return `{"b64": base64.b64encode(open(${JSON.stringify(file)}, "rb").read()).decode()}`;
  return literal(json);
}

const WORDS = new Map([[true, "True"], [false, "False"], [null, "None"]]);

// Return a Python literal.
function literal(json) {
  if (WORDS.has(json)) return WORDS.get(json);
  if (Array.isArray(json)) return `[${json.map(literal).join(", ")}]`;
  if (typeof json !== "object") return JSON.stringify(json);
  const items = Object.entries(json).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`);
  return `{${items.join(", ")}}`;
}

function javascript(url, text, files) {
  const read = (file) => `(await readFile(${JSON.stringify(file)})).toString("base64")`;
  const fill = (code, file, at) => code.replace(`"${MARK(at)}"`, () => read(file));
  return [
    ...(files.length ? ['import { readFile } from "node:fs/promises";', ""] : []),
    `const body = ${files.reduce(fill, text)};`,
    `const response = await fetch(${JSON.stringify(url)}, {`,
    '  method: "POST",', '  headers: { "content-type": "application/json" },', "  body: JSON.stringify(body),", "});",
    "console.log(await response.json());",
  ].join("\n");
}
