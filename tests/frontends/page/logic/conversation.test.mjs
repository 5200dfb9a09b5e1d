// Conversations as data: what is asked, edited, deleted and found.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as archive from "../../../../mindspore_serving/frontends/page/static/chat/archive.js";
import * as talk from "../../../../mindspore_serving/frontends/page/static/chat/conversation.js";

const user = (content) => ({ role: "user", content });
const model = (content, more = {}) => ({ role: "assistant", content, model: "m", mark: "", ...more });
const lane = (...messages) => ({ model: "m", messages });

test("a conversation is called by its first question until somebody names it", () => {
  const one = talk.start("m");
  talk.ask(one, "Why  is the sky\nblue?");
  assert.equal(one.title, "Why is the sky blue?");
  talk.rename(one, " Sky ");
  talk.ask(one, "And red?");
  assert.equal(one.title, "Sky");
  talk.rename(one, "");
  assert.equal(one.title, "Why is the sky blue?");
});

test("answering again takes away the answer and all behind it", () => {
  const here = lane(user("a"), model("1"), user("b"), model("2"));
  assert.deepEqual(talk.rewind(here, 1), [model("1"), user("b"), model("2")]);
  assert.deepEqual(here.messages, [user("a")]);
});

test("an edited question takes away what came behind it", () => {
  const here = lane(user("a"), model("1"), user("b"), model("2"));
  talk.edit(here, 2, "c");
  assert.deepEqual(here.messages, [user("a"), model("1"), user("c")]);
});

test("a deleted question takes its answers with it, a deleted answer nothing", () => {
  const here = lane(user("a"), model("1"), user("b"), model("2"));
  talk.remove(here, 3);
  assert.deepEqual(here.messages, [user("a"), model("1"), user("b")]);
  talk.remove(here, 0);
  assert.deepEqual(here.messages, [user("b")]);
});

test("a call is open until there is a result for it", () => {
  const calls = [{ id: "1", name: "f", arguments: "{}" }, { id: "2", name: "g", arguments: "{}" }];
  const here = lane(user("a"), model("", { calls }));
  assert.deepEqual(talk.openCalls(here), calls);
  here.messages.push({ role: "tool", callId: "1", name: "f", content: "x" });
  assert.deepEqual(talk.openCalls(here), [calls[1]]);
  here.messages.push(user("never mind"));
  assert.deepEqual(talk.openCalls(here), []);
});

test("a search finds words in titles and messages, in any order", () => {
  const one = talk.start("m");
  talk.ask(one, "Rainbows and rain");
  one.lanes[0].messages.push(model("Light is refracted."));
  assert.ok(talk.matches(one, "refracted RAIN"));
  assert.ok(talk.matches(one, ""));
  assert.ok(!talk.matches(one, "snow rain"));
});

test("what is exported can be imported", () => {
  const one = talk.start("m");
  talk.ask(one, "a");
  const tokens = [{ text: "1", logprob: -0.5, others: [["1", -0.5]] }];
  one.lanes[0].messages.push(model("1", { tokens, usage: { prompt: 1 }, calls: [{ id: "", name: "f", arguments: "" }] }));
  assert.deepEqual(archive.read(archive.write([one])), [one]);
});

test("a file that holds something else is refused with the reason", () => {
  const wrong = (change) => {
    const made = JSON.parse(archive.write([{ ...talk.start("m"), lanes: [lane(user("a"))] }]));
    change(made);
    return () => archive.read(JSON.stringify(made));
  };
  assert.throws(wrong((made) => (made.kind = "other")), /kind is "other"/);
  assert.throws(wrong((made) => (made.version = 2)), /version is 2, expected 1/);
  assert.throws(wrong((made) => (made.conversations[0].lanes = [])), /no lanes/);
  assert.throws(wrong((made) => (made.conversations[0].lanes[0].messages[0].role = "x")), /role is "x"/);
  assert.throws(wrong((made) => (made.conversations[0].title = {})), /title is {}, expected text/);
  assert.throws(() => archive.read("null"), /kind is undefined/);
  assert.throws(() => archive.read("{"), SyntaxError);
});
