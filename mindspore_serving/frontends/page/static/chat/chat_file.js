// A conversation as a file: the body of a request, as `mindspore-serving chat` saves and loads it.
// Files are not trusted.  Pure.

import { start, touch } from "./conversation.js";
import { isImageUrl, SOUND_TYPES } from "./kept_images.js";
import { toSettings } from "./presets.js";
import { systemOf, toMessages, toSampling } from "./request.js";

const NAME_LENGTH = 40; // characters

export function toFile(lane, settings) {
  const system = systemOf(lane, settings);
  const messages = [...system, ...toMessages(lane.messages, true)];
  return `${JSON.stringify({ model: lane.model, messages, ...toSampling(toSettings(settings)) }, null, 1)}\n`;
}

export function fileName(title) {
  const words = title.slice(0, NAME_LENGTH).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "");
  return `${words || "conversation"}.json`;
}

// Return the conversation of a request's body.  Throws Error with the reason.
export function fromFile(body) {
  const made = start(typeof body.model === "string" ? body.model : "");
  if (!Array.isArray(body.messages) || !body.messages.length) throw new Error("messages is no list of messages");
  const [lane] = made.lanes;
  for (const [at, given] of body.messages.entries()) lane.messages.push(toMessage(given, `messages[${at}]`, lane));
  touch(made);
  return made;
}

const READERS = {
  system: (given, place) => ({ role: "system", ...toContent(given.content, place) }),
  developer: (given, place) => READERS.system(given, place),
  user: (given, place) => ({ role: "user", ...toContent(given.content, place) }),
  assistant,
  tool(given, place, lane) {
    const calls = lane.messages.flatMap((one) => one.calls ?? []);
    const callId = text(given.tool_call_id ?? "", `${place}.tool_call_id`);
    return { role: "tool", ...toContent(given.content, place), callId, name: calls.find((one) => one.id === callId)?.name ?? "" };
  },
};

function toMessage(given, place, lane) {
  const role = given?.role;
  if (!Object.hasOwn(READERS, role)) throw new Error(`${place}.role is ${JSON.stringify(role)}, expected ${Object.keys(READERS).join(", ")}`);
  return READERS[role](given, place, lane);
}

function assistant(given, place, { model }) {
  const made = { role: "assistant", model, mark: "", ...toContent(given.content ?? "", place) };
  const thought = given.reasoning_content ?? given.reasoning;
  if (thought) made.reasoning = text(thought, `${place}.reasoning_content`);
  if (given.tool_calls?.length) made.calls = given.tool_calls.map((one) => toCall(one, `${place}.tool_calls`));
  return made;
}

function toCall(given, place) {
  return { id: text(given?.id, place), name: text(given.function?.name, place), arguments: text(given.function.arguments, place) };
}

// Content is a text, or a list of texts and images.
function toContent(given, place) {
  if (!Array.isArray(given)) return { content: text(given, `${place}.content`) };
  const texts = given.filter((one) => one?.type === "text").map((one) => text(one.text, `${place}.content`));
  const images = given.filter((one) => one?.type !== "text").map((one, at) => toImage(one, `${place}.content`, at));
  return { content: texts.join("\n"), ...(images.length ? { images } : {}) };
}

function toImage(part, place, at) {
  const url = (part?.image_url ?? part?.video_url)?.url ?? part?.file?.file_data ?? soundUrl(part?.input_audio);
  if (typeof url !== "string" || !isImageUrl(url)) throw new Error(`${place} has a part that is neither a text nor an image as a data URI`);
  return { name: part.file?.filename ?? `${at + 1}`, url };
}

function soundUrl(sound) {
  const type = Object.keys(SOUND_TYPES).find((one) => SOUND_TYPES[one] === sound?.format);
  return sound && `data:${type};base64,${sound.data}`;
}

function text(given, place) {
  if (typeof given !== "string") throw new Error(`${place} is ${JSON.stringify(given)?.slice(0, 40)}, expected a text`);
  return given;
}
