// What Markdown is taken for, before it becomes elements.

import assert from "node:assert/strict";
import { test } from "node:test";
import { decode, lex, safeAddress } from "../../../../mindspore_serving/frontends/page/static/chat/lexer.js";

const inline = (text) => lex(text)[0].tokens.map(({ type, raw }) => [type, raw]);

test("formulas are left as they are", () => {
  assert.deepEqual(inline("so $a_1*b*c$ is")[1], ["formula-inline", "$a_1*b*c$"]);
  assert.deepEqual(inline("so \\(a_1*b\\) is")[1], ["formula-inline", "\\(a_1*b\\)"]);
  assert.equal(lex("$$\na_1 * b_2\n$$")[0].type, "formula-block");
  assert.equal(lex("\\[\na\n\\]")[0].type, "formula-block");
});

test("prices are no formulas", () => {
  assert.deepEqual(inline("it costs $5 and $6 now").map(([type]) => type), ["text"]);
});

test("nothing of a text is lost between its tokens", () => {
  const text = "# a\n\n- b\n- c\n\n```js\nd\n```\n\n| e |\n|---|\n| f |\n\ng **h";
  assert.equal(lex(text).map((one) => one.raw).join(""), text);
});

test("links go to the web or to mail, and run nothing", () => {
  assert.equal(safeAddress("https://a.example/"), "https://a.example/");
  for (const wrong of ["javascript:alert(1)", "data:text/html,x", " javascript:x", "/model"]) assert.equal(safeAddress(wrong), null);
});

test("references to characters are read", () => {
  assert.equal(decode("&lt;b&gt; &amp; &#65; &#x42; &unknown;"), "<b> & A B &unknown;");
});
