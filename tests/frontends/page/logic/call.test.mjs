// The form of a signature, and the programs that make the same call.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { programs } from "../../../../mindspore_serving/frontends/page/static/call/code.js";
import * as fields from "../../../../mindspore_serving/frontends/page/static/call/fields.js";

const spec = (name, dtype, shape) => ({ name, dtype, shape });

test("an input has the field that fits what it takes", () => {
  const kind = (...given) => fields.kindOf(spec(...given));
  assert.equal(kind("x", "float32", []), "number");
  assert.equal(kind("x", "float32", [2, 2]), "grid");
  assert.equal(kind("x", "int64", [null]), "grid");
  assert.equal(kind("x", "float32", [3, 224, 224]), "json");
  assert.equal(kind("x", "str", []), "text");
  assert.equal(kind("x", "bool", []), "bool");
  assert.equal(kind("x", "bytes", []), "file");
  assert.equal(kind("image", null, null), "file");
  assert.equal(kind("x1", null, null), "any");
});

test("the limits of a number are those of its schema or its type", () => {
  const of = (schema, dtype = null) => Object.values(fields.limitsOf({ dtype, schema }));
  assert.deepEqual(of({ type: "number", minimum: 0, maximum: 100, default: 1 }), [0, 100, "any", false, 1]);
  assert.deepEqual(of({ type: "number", exclusiveMinimum: 0, maximum: 1, default: 1 }), [0, 1, "any", true, 1]);
  assert.deepEqual(of({ type: "integer", minimum: 0, maximum: 2 ** 64 }), [0, "", 1, false, ""]);
  assert.deepEqual(of(undefined, "uint8"), [0, 255, 1, false, ""]);
  assert.deepEqual(of(undefined, "int16"), [-32768, 32767, 1, false, ""]);
  assert.deepEqual(of(undefined, "int64"), ["", "", 1, false, ""]);
  assert.deepEqual(of(undefined, "float32"), ["", "", "any", false, ""]);
});

test("optional inputs are folded where they are many, but for the first", () => {
  const specs = (count) => [{ name: "x" }, ...Array.from({ length: count }, (_, at) => ({ name: `o${at}`, optional: true }))];
  const names = (count) => fields.fold(specs(count)).map((some) => some.map((one) => one.name).join(" "));
  assert.deepEqual(names(0), ["x", ""]);
  assert.deepEqual(names(3), ["x o0 o1 o2", ""]);
  assert.deepEqual(names(4), ["x o0 o1", "o2 o3"]);
});

test("a grid gives numbers in the shape of the input", () => {
  assert.deepEqual(fields.fromGrid(spec("x", "float32", [2, 2]), ["1", "2", "3", "4"]), [[1, 2], [3, 4]]);
  assert.deepEqual(fields.fromGrid(spec("x", "float32", [2]), ["1", "2"]), [1, 2]);
  assert.throws(() => fields.fromGrid(spec("x", "float32", [1]), ["a"]), /x: "a"/);
});

test("where any value may be, JSON is JSON and the rest is text", () => {
  const of = (text) => fields.fromText(spec("x", null, null), "any", text);
  assert.deepEqual([of("1.5"), of("[1]"), of("a b"), of("")], [1.5, [1], "a b", ""]);
});

const VALUES = { text: { json: "it's \"so\" $HOME `x` ü" }, is: { json: [true, null] }, data: { file: "it's a.bin", b64: "AAEC" } };
const BODY = { instances: [{ text: VALUES.text.json, is: [true, null], data: { b64: "AAEC" } }] };

test("curl sends what the form sends, in any shell", () => {
  const folder = mkdtempSync(join(tmpdir(), "page-"));
  writeFileSync(join(folder, "it's a.bin"), Buffer.from([0, 1, 2]));
  const line = programs("http://127.0.0.1/", VALUES).curl.replace("| curl", "| echo_body");
  const sent = execFileSync("sh", ["-c", `echo_body() { cat; }; ${line}`], { cwd: folder, encoding: "utf8" });
  assert.deepEqual(JSON.parse(sent), BODY);
});

test("JavaScript makes the same body", async () => {
  const code = programs("http://127.0.0.1/", VALUES).javascript;
  const [, text] = code.match(/const body = (.*);\n/);
  const read = async () => Buffer.from([0, 1, 2]);
  const body = await new Function("readFile", `return (async () => (${text}))()`)(read);
  assert.deepEqual(body, BODY);
});
