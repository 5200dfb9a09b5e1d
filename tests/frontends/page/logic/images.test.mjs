// Pictures of messages: what is sent, kept, dropped, and written to files.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as archive from "../../../../mindspore_serving/frontends/page/static/chat/archive.js";
import { fromFile } from "../../../../mindspore_serving/frontends/page/static/chat/chat_file.js";
import * as talk from "../../../../mindspore_serving/frontends/page/static/chat/conversation.js";
import { dropImages, isImageUrl, kindOf } from "../../../../mindspore_serving/frontends/page/static/chat/kept_images.js";
import { toMessages } from "../../../../mindspore_serving/frontends/page/static/chat/request.js";

const URL_OF = "data:image/png;base64,AAAA";
const image = (name) => ({ name, url: URL_OF });

function conversation(...images) {
  const one = talk.start("m");
  for (const each of images) talk.ask(one, "what is it?", [each]);
  return one;
}

test("pictures are sent as OpenAI's parts, in front of the text", () => {
  const part = { type: "image_url", image_url: { url: URL_OF } };
  const [both] = toMessages([{ role: "user", content: "a", images: [image("x")] }]);
  assert.deepEqual(both.content, [part, { type: "text", text: "a" }]);
  const [alone] = toMessages([{ role: "user", content: "", images: [image("x")] }]);
  assert.deepEqual(alone.content, [part]);
});

test("videos and PDF files are sent as parts of their kind, and come back from a file", () => {
  const film = { name: "a.mp4", url: "data:video/mp4;base64,AAAA" };
  const paper = { name: "b.pdf", url: "data:application/pdf;base64,AAAA" };
  const [message] = toMessages([{ role: "user", content: "", images: [film, paper] }]);
  assert.deepEqual(message.content, [
    { type: "video_url", video_url: { url: film.url } },
    { type: "file", file: { filename: "b.pdf", file_data: paper.url } },
  ]);
  const one = conversation(film, paper);
  assert.deepEqual(archive.read(archive.write([one])), [one]);
});

test("a picture that is no longer kept is not sent", () => {
  assert.deepEqual(toMessages([{ role: "user", content: "a", images: [{ name: "x" }] }]), [{ role: "user", content: "a" }]);
});

test("a question that is asked in other words is about the same pictures", () => {
  const one = conversation(image("x"));
  talk.edit(one.lanes[0], 0, "and now?");
  assert.deepEqual(one.lanes[0].messages, [{ role: "user", content: "and now?", images: [image("x")] }]);
});

test("the oldest pictures are dropped where there are too many", () => {
  const [newer, older] = [conversation(image("b"), image("c")), conversation(image("a"))];
  const names = () => [newer, older].map((one) => one.lanes[0].messages.flatMap((each) => each.images.filter((i) => i.url).map((i) => i.name)));
  assert.deepEqual(dropImages([newer, older], 3 * URL_OF.length), []);
  assert.deepEqual(dropImages([newer, older], 2 * URL_OF.length), [older]);
  assert.deepEqual(names(), [["b", "c"], []]);
  assert.deepEqual(dropImages([newer, older], URL_OF.length), [newer]);
  assert.deepEqual(names(), [["c"], []]);
});

test("pictures go to a file and come back, and nothing else is taken for one", () => {
  const one = conversation(image("x"), { name: "dropped" });
  assert.deepEqual(archive.read(archive.write([one])), [one]);
  for (const url of ["https://web.invalid/x.png", "data:image/svg+xml;base64,AAAA", "data:image/png;base64,A A", 7]) {
    const other = conversation({ name: "x", url });
    assert.throws(() => archive.read(archive.write([other])), /url is/);
  }
  assert.ok(isImageUrl(URL_OF));
});

test("sounds are sent as OpenAI's parts, and come back from a file", () => {
  const sound = { name: "a.mp3", url: "data:audio/mpeg;base64,AAAA" };
  const [message] = toMessages([{ role: "user", content: "", images: [sound] }]);
  assert.deepEqual(message.content, [{ type: "input_audio", input_audio: { data: "AAAA", format: "mp3" } }]);
  const one = conversation(sound);
  assert.deepEqual(archive.read(archive.write([one])), [one]);
  const [lane] = fromFile({ model: "m", messages: [message] }).lanes;
  assert.deepEqual(lane.messages[0].images, [{ name: "1", url: sound.url }]);
  assert.deepEqual([kindOf(sound.url), kindOf(URL_OF)], ["audio", "image"]);
});
