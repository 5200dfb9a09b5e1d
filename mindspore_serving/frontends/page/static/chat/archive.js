// Export and import of conversations; imported files are not trusted.  Pure.

import { fromFile } from "./chat_file.js";
import { isImageUrl } from "./kept_images.js";

const KIND = "mindspore-serving-conversations";
const VERSION = 1;
const ROLES = ["system", "user", "assistant", "tool"];
const TEXTS = ["model", "reasoning", "mark", "error", "callId", "name"];

export function write(conversations) {
  return JSON.stringify({ kind: KIND, version: VERSION, conversations }, null, 1);
}

// Return the conversations of a file's text: an export, or a conversation of `chat`.  Throws Error
// with the reason.
export function read(text) {
  const found = JSON.parse(text);
  if (found?.messages) return [fromFile(found)];
  if (found?.kind !== KIND) throw new Error(`kind is ${JSON.stringify(found?.kind)}, expected "${KIND}", or messages as chat saves them`);
  if (found.version !== VERSION) throw new Error(`version is ${found.version}, expected ${VERSION}`);
  return list(found.conversations, "conversations").map(conversation);
}

function conversation(given, place) {
  const lanes = list(given?.lanes, `conversations[${place}].lanes`).map(lane);
  if (!lanes.length) throw new Error(`conversations[${place}] has no lanes`);
  return {
    id: string(given.id, "id"),
    title: string(given.title, "title"),
    isNamed: Boolean(given.isNamed),
    changed: Number(given.changed) || 0,
    lanes: lanes.slice(0, 2),
  };
}

function lane(given) {
  return { model: string(given?.model, "model"), messages: list(given.messages, "messages").map(message) };
}

function message(given) {
  if (!ROLES.includes(given?.role)) throw new Error(`role is ${JSON.stringify(given?.role)}, expected ${ROLES.join(", ")}`);
  const made = { role: given.role, content: string(given.content, "content") };
  for (const name of TEXTS) if (given[name] !== undefined) made[name] = string(given[name], name);
  if (given.images) made.images = list(given.images, "images").map(image);
  if (given.files) made.files = list(given.files, "files").map(file);
  if (given.calls) made.calls = list(given.calls, "calls").map(call);
  if (given.tokens) made.tokens = list(given.tokens, "tokens").map(token);
  for (const name of ["usage", "times"]) if (given[name]) made[name] = numbers(given[name]);
  return made;
}

// Images without a URL were dropped before the export.
function image(given) {
  const made = { name: string(given?.name, "name") };
  if (given.url === undefined) return made;
  if (!isImageUrl(string(given.url, "url"))) throw new Error(`url is ${given.url.slice(0, 40)}, expected a data URI of a picture`);
  return { ...made, url: given.url };
}

function file(given) {
  return { name: string(given?.name, "name"), text: string(given.text, "text") };
}

function call(given) {
  return { id: string(given?.id, "id"), name: string(given.name, "name"), arguments: string(given.arguments, "arguments") };
}

function token(given) {
  const others = list(given?.others ?? [], "others").map(([text, logprob]) => [string(text, "token"), Number(logprob)]);
  return { text: string(given.text, "token"), logprob: Number(given.logprob), others };
}

function numbers(given) {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => typeof value === "number"));
}

function list(given, name) {
  if (!Array.isArray(given)) throw new Error(`${name} is ${JSON.stringify(given)?.slice(0, 40)}, expected a list`);
  return given;
}

function string(given, name) {
  if (typeof given !== "string") throw new Error(`${name} is ${JSON.stringify(given)?.slice(0, 40)}, expected text`);
  return given;
}
