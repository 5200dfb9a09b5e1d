// Conversations in the form of `chat`, and text files of messages.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as archive from "../../../../mindspore_serving/frontends/page/static/chat/archive.js";
import { fileName, toFile } from "../../../../mindspore_serving/frontends/page/static/chat/chat_file.js";
import { toText, withFiles } from "../../../../mindspore_serving/frontends/page/static/chat/files.js";
import { DEFAULTS } from "../../../../mindspore_serving/frontends/page/static/chat/presets.js";
import { toMessages, toRequest } from "../../../../mindspore_serving/frontends/page/static/chat/request.js";

const settings = { ...DEFAULTS, system: "Be kind.", temperature: "0.5", top_p: "?" };
const user = (content) => ({ role: "user", content });
const reread = (body) => archive.read(JSON.stringify(body))[0].lanes[0];

test("a conversation is saved as the body of a request, with what the user has set", () => {
  const messages = [user("a"), { role: "assistant", content: "b", model: "m", mark: "", reasoning: "hm", usage: { prompt: 1 } }];
  assert.deepEqual(JSON.parse(toFile({ model: "m", messages }, settings)), {
    model: "m",
    messages: [
      { role: "system", content: "Be kind." },
      user("a"),
      { role: "assistant", content: "b", reasoning_content: "hm" },
    ],
    temperature: 0.5,
  });
});

test("what was saved is read again, and saved again as it was", () => {
  const url = "data:image/png;base64,AAAA";
  const calls = [{ id: "1", name: "f", arguments: "{}" }];
  const messages = [
    { ...user("look"), images: [{ name: "1", url }] },
    { role: "assistant", content: "", model: "m", mark: "", calls },
    { role: "tool", content: "x", callId: "1", name: "f" },
    { role: "assistant", content: "done", model: "m", mark: "", reasoning: "so" },
  ];
  const text = toFile({ model: "m", messages }, settings);
  const lane = reread(JSON.parse(text));
  assert.deepEqual(lane, { model: "m", messages: [{ role: "system", content: "Be kind." }, ...messages] });
  assert.equal(toFile(lane, settings), text);
});

test("a conversation with a system prompt of its own is sent with that one alone", () => {
  const lane = reread({ model: "m", messages: [{ role: "system", content: "Be brief." }, user("a")] });
  assert.deepEqual(toRequest(lane, settings.top_p && { ...settings, top_p: "" }).messages, [{ role: "system", content: "Be brief." }, user("a")]);
});

test("a file that is no conversation is refused with the place", () => {
  const wrong = (messages) => () => reread({ messages });
  assert.throws(wrong([]), /messages is no list/);
  assert.throws(wrong([{ role: "usr", content: "a" }]), /messages\[0\].role is "usr", expected system/);
  assert.throws(wrong([{ role: "constructor", content: "a" }]), /messages\[0\].role is "constructor"/);
  assert.throws(wrong([user("a"), user(3)]), /messages\[1\].content is 3, expected a text/);
  assert.throws(wrong([user([{ type: "image_url", image_url: { url: "https://web.invalid/x.png" } }])]), /neither a text nor an image/);
  assert.throws(wrong([user([{ type: "image_url", image_url: { url: "data:image/svg+xml;base64,AAAA" } }])]), /neither a text/);
});

test("a saved file is named by the title", () => {
  assert.deepEqual(["Why is the sky blue?", "天空 为什么蓝", "../..", ""].map(fileName), [
    "Why-is-the-sky-blue.json", "天空-为什么蓝.json", "conversation.json", "conversation.json",
  ]);
});

test("bytes are a text or nothing", () => {
  const bytes = (...all) => new Uint8Array(all);
  assert.equal(toText(new TextEncoder().encode("grün\r\n")), "grün\n");
  assert.equal(toText(bytes(0xff, 0xfe, 0x60, 0x4f)), "你");
  assert.equal(toText(bytes(0xfe, 0xff, 0x4f, 0x60)), "你");
  assert.equal(toText(bytes(0xff, 0x00)), null);
  assert.equal(toText(bytes(65, 0, 66)), null);
});

test("a file is a block of code that its own text cannot end", () => {
  const files = [{ name: "a.md", text: "```\nx\n```\n" }, { name: "b.pdf", text: "y" }];
  assert.equal(withFiles("Why?", files), "a.md:\n````md\n```\nx\n```\n````\n\nb.pdf:\n```\ny\n```\n\nWhy?");
  assert.deepEqual(toMessages([{ ...user(""), files: [files[1]] }]), [user("b.pdf:\n```\ny\n```")]);
});
