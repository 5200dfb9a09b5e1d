// Body of the request for the next answer of a lane.  Pure.

import { withFiles } from "./files.js";
import { SOUND_TYPES } from "./kept_images.js";
import { NUMBERS } from "./numbers.js";

// Invalid setting: `field` is its name, `value` its text, `expected` "number" or "json".
export class Unusable extends Error {
  constructor(field, value, expected, reason = "") {
    super(reason);
    Object.assign(this, { field, value, expected });
  }
}

// `settings` are texts as typed; ranges are checked by the server.  `maxTokens` is the limit of the
// answer if the settings have none.  Throws Unusable for text that is no number, or no JSON.
export function toRequest(lane, settings, { maxTokens, isContinued = false } = {}) {
  const body = {
    model: lane.model,
    messages: [...systemOf(lane, settings), ...toMessages(lane.messages)],
    stream: true,
    stream_options: { include_usage: true },
    ...(maxTokens ? { max_tokens: maxTokens } : {}),
    ...toSampling(settings),
  };
  if (settings.stop.trim()) body.stop = settings.stop.split("\n").filter(Boolean);
  const isColoured = settings.logprobs && (!isContinued || lane.messages.at(-1).tokens);
  if (isColoured) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  if (settings.schema.trim()) body.response_format = toFormat(json("schema", settings.schema));
  if (settings.tools.trim()) body.tools = toTools(json("tools", settings.tools));
  if (isContinued) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  return body;
}

// Return the system prompt of the settings as a message; none if the conversation has its own.
export function systemOf(lane, settings) {
  const content = settings.system.trim();
  return content && lane.messages[0]?.role !== "system" ? [{ role: "system", content }] : [];
}

// Questions without an answer are left out, except the last.  Models see the reasoning of earlier
// answers only `withReasoning`.
export function toMessages(messages, withReasoning = false) {
  const isDropped = (all, at) => all[at].role === "user" && all[at + 1]?.role === "user";
  const isFailed = (one) => one.role === "assistant" && one.error && !one.content && !one.calls;
  const kept = messages.filter((one) => !isFailed(one));
  const thought = ({ reasoning }) => (withReasoning && reasoning ? { reasoning_content: reasoning } : {});
  return kept.filter((_, at) => !isDropped(kept, at)).map((one) => ({ ...toMessage(one), ...thought(one) }));
}

function toMessage({ role, content: words, images = [], files, calls, callId }) {
  const content = withFiles(words, files);
  const sent = images.filter((one) => one.url);
  if (sent.length) return { role, content: [...sent.map(toPart), ...(content ? [{ type: "text", text: content }] : [])] };
  if (role === "tool") return { role, content, tool_call_id: callId };
  if (!calls?.length) return { role, content };
  const toCall = ({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } });
  return { role, content: content || null, tool_calls: calls.map(toCall) };
}

function toPart({ name, url }) {
  if (url.startsWith("data:video/")) return { type: "video_url", video_url: { url } };
  if (url.startsWith("data:audio/")) {
    const [head, data] = url.split(",");
    return { type: "input_audio", input_audio: { data, format: SOUND_TYPES[head.slice("data:".length, head.indexOf(";"))] } };
  }
  if (url.startsWith("data:application/pdf;")) return { type: "file", file: { filename: name, file_data: url } };
  return { type: "image_url", image_url: { url } };
}

// Return the numbers of the settings.  Throws Unusable.
export function toSampling(settings) {
  const found = {};
  for (const name of NUMBERS) {
    const text = settings[name].trim();
    if (!text) continue;
    if (!Number.isFinite(Number(text))) throw new Unusable(name, text, "number");
    found[name] = Number(text);
  }
  return found;
}

function json(field, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Unusable(field, text, "json", error.message);
  }
}

function toFormat(schema) {
  return { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
}

// Parse a list of tools, or a single tool; each in OpenAI's form, or the function alone.
function toTools(given) {
  const all = Array.isArray(given) ? given : [given];
  return all.map((one) => (one?.function ? one : { type: "function", function: one }));
}
