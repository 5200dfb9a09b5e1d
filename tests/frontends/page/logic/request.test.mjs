// What the chat sends, and how it reads what comes.

import assert from "node:assert/strict";
import { test } from "node:test";
import { tokensOf } from "../../../../mindspore_serving/frontends/page/static/chat/context.js";
import * as numbers from "../../../../mindspore_serving/frontends/page/static/chat/numbers.js";
import * as presets from "../../../../mindspore_serving/frontends/page/static/chat/presets.js";
import { begin, isEmpty, take } from "../../../../mindspore_serving/frontends/page/static/chat/reply.js";
import { toMessages, toRequest } from "../../../../mindspore_serving/frontends/page/static/chat/request.js";

const user = (content) => ({ role: "user", content });
const set = (values) => ({ ...presets.DEFAULTS, ...values });
const lane = (...messages) => ({ model: "m", messages });

test("an empty field of the settings is left to the server", () => {
  const body = toRequest(lane(user("a")), set({}));
  assert.deepEqual(body, { model: "m", messages: [user("a")], stream: true, stream_options: { include_usage: true } });
});

test("a number is sent as it was typed, also one that the server will refuse", () => {
  assert.equal(toRequest(lane(user("a")), set({ temperature: "9" })).temperature, 9);
});

test("an answer has the limit of the settings, or that of the model", () => {
  assert.equal(toRequest(lane(user("a")), set({}), { maxTokens: 1024 }).max_tokens, 1024);
  assert.equal(toRequest(lane(user("a")), set({ max_tokens: "7" }), { maxTokens: 1024 }).max_tokens, 7);
});

test("the defaults are those on which the models agree", () => {
  const one = { max_model_len: 4096, default_sampling: { temperature: 0.7, top_k: 0 }, suggested_max_tokens: 1024, sampling_source: "model" };
  assert.deepEqual(numbers.defaultsOf([one]), { temperature: 0.7, top_k: 0, max_tokens: 1024 });
  assert.deepEqual(numbers.defaultsOf([one, { ...one, default_sampling: { temperature: 1, top_k: 0 } }]), { top_k: 0, max_tokens: 1024 });
  assert.deepEqual([numbers.sourceOf([one]), numbers.sourceOf([one, { ...one, sampling_source: "server" }])], ["model", ""]);
});

test("a server that suggests no limit gets one, at most the context", () => {
  assert.deepEqual([{ max_model_len: 8192 }, { max_model_len: 512 }].map(numbers.maxTokensOf), [1024, 512]);
});

test("what is no number or no JSON is not sent", () => {
  assert.throws(() => toRequest(lane(), set({ top_p: "much" })), { field: "top_p", value: "much", expected: "number" });
  assert.throws(() => toRequest(lane(), set({ schema: "{" })), { field: "schema", expected: "json" });
});

test("a schema, tools, stops and probabilities are asked for in OpenAI's form", () => {
  const f = { name: "f", parameters: {} };
  const body = toRequest(lane(user("a")), set({ schema: "{}", tools: JSON.stringify([f]), stop: "x\n\ny", logprobs: true }));
  assert.deepEqual(body.response_format.json_schema.schema, {});
  assert.deepEqual(body.tools, [{ type: "function", function: f }]);
  assert.deepEqual(body.stop, ["x", "y"]);
  assert.equal(body.logprobs, true);
});

test("an answer is continued from its last word", () => {
  const body = toRequest(lane(user("a"), { role: "assistant", content: "b" }), set({ logprobs: true }), { isContinued: true });
  assert.deepEqual([body.continue_final_message, body.add_generation_prompt], [true, false]);
  assert.equal(body.logprobs, undefined); // the first part has none
});

test("a question without an answer is not carried along, but for the last", () => {
  const failed = { role: "assistant", content: "", error: "no" };
  assert.deepEqual(toMessages([user("a"), failed, user("b")]), [user("b")]);
  assert.deepEqual(toMessages([user("a"), user("b")]), [user("b")]);
});

test("calls and results are sent back as the model made them", () => {
  const calls = [{ id: "1", name: "f", arguments: "{}" }];
  const sent = toMessages([{ role: "assistant", content: "", calls }, { role: "tool", callId: "1", content: "x" }]);
  assert.deepEqual(sent[0].tool_calls, [{ id: "1", type: "function", function: { name: "f", arguments: "{}" } }]);
  assert.deepEqual(sent[1], { role: "tool", content: "x", tool_call_id: "1" });
});

const delta = (given, more = {}) => ({ choices: [{ delta: given, ...more }] });

test("an answer is put together of what comes", () => {
  const message = begin("m");
  assert.equal(message.mark, "stopped"); // until its end
  assert.ok(isEmpty(message));
  take(message, delta({ reasoning_content: "hm" }), 1);
  take(message, delta({ content: "a" }), 2);
  take(message, delta({ content: "b" }), 3);
  take(message, delta({}, { finish_reason: "length" }), 3);
  take(message, { choices: [], usage: { prompt_tokens: 5, completion_tokens: 3 } }, 3);
  assert.deepEqual([message.reasoning, message.content, message.mark], ["hm", "ab", "length"]);
  assert.deepEqual(message.usage, { prompt: 5, completion: 3, cached: 0 });
  assert.deepEqual(message.times, { wait: 1, took: 2, pieces: 3 });
});

test("a character that is cut in the middle is dropped at the end of a cut answer, and nowhere else", () => {
  const message = { ...begin("m"), tokens: [] };
  const token = (text) => ({ token: text, logprob: 0 });
  take(message, delta({ content: "a\ufffdb\ufffd\ufffd" }, { logprobs: { content: [token("b"), token("\ufffd"), token("\ufffd")] } }), 1);
  take(message, delta({}, { finish_reason: "length" }), 1);
  assert.equal(message.content, "a\ufffdb");
  assert.deepEqual(message.tokens.map((one) => one.text), ["b"]);
  const whole = begin("m");
  take(whole, delta({ content: "a\ufffd" }, { finish_reason: "stop" }), 1);
  assert.equal(whole.content, "a\ufffd");
});

test("the tokens of the context are what the server counted, and an estimate of the rest", () => {
  const answer = { role: "assistant", content: "b", usage: { prompt: 20, completion: 5 } };
  assert.deepEqual(tokensOf([]), { count: 0, isExact: true });
  assert.deepEqual(tokensOf([user("a"), answer]), { count: 25, isExact: true });
  assert.deepEqual(tokensOf([user("a"), answer, user("x".repeat(40))]), { count: 25 + 4 + 10, isExact: false });
  assert.deepEqual(tokensOf([user("你好吗")]), { count: 4 + 2, isExact: false });
});

test("a call comes in pieces, several by their index", () => {
  const message = begin("m");
  take(message, delta({ tool_calls: [{ index: 0, id: "1", function: { name: "f", arguments: '{"a"' } }] }), 1);
  take(message, delta({ tool_calls: [{ index: 0, function: { arguments: ":1}" } }] }), 1);
  take(message, delta({ tool_calls: [{ index: 1, id: "2", function: { name: "g", arguments: "{}" } }] }), 1);
  assert.deepEqual(message.calls, [
    { id: "1", name: "f", arguments: '{"a":1}' },
    { id: "2", name: "g", arguments: "{}" },
  ]);
});

test("a preset of the page changes the numbers and nothing else", () => {
  const before = set({ system: "Be kind.", seed: "1" });
  const after = presets.applyBuiltIn(before, "exact");
  assert.deepEqual([after.system, after.temperature, after.seed], ["Be kind.", "0", ""]);
  assert.deepEqual(presets.changes(after), [["system", "Be kind."], ["temperature", "0"]]);
});

test("settings that another version has kept are taken as far as they fit", () => {
  assert.deepEqual(presets.toSettings({ temperature: "1", top_p: 3, other: "x" }), set({ temperature: "1" }));
  assert.deepEqual(presets.toSettings({ temperature: "hot", top_p: "0.5" }), set({ top_p: "0.5" }));
});
