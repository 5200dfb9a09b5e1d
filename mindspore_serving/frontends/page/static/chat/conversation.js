// Conversations as data, and operations on them.  Pure: no page, no server, no store.
//
// A conversation is {id, title, isNamed, changed, lanes}: a lane for each model that answers, one or
// two.  A lane is {model, messages}.  A message is {role, content} and, by its role:
//   system:    first, in conversations from a file; others have the system prompt of the settings
//   user:      images [{name, url}], also videos and PDF files, and files [{name, text}]
//   assistant: model, reasoning, calls [{id, name, arguments}], tokens [{text, logprob, others}],
//              mark ("", "stopped" or "length"), error, usage, times {wait, took, pieces}
//   tool:      callId, name

const TITLE = 60; // characters

export function start(model, now = Date.now()) {
  const id = `${now.toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
  return { id, title: "", isNamed: false, changed: now, lanes: [{ model, messages: [] }] };
}

// `attached` are images and files.
export function ask(conversation, content, attached = []) {
  const images = attached.filter((one) => one.url !== undefined);
  const files = attached.filter((one) => one.text !== undefined);
  const more = { ...(images.length ? { images } : {}), ...(files.length ? { files } : {}) };
  for (const lane of conversation.lanes) lane.messages.push({ role: "user", content, ...more });
  touch(conversation);
}

// Set the time of the change, and title the conversation by its first question unless it is named.
export function touch(conversation, now = Date.now()) {
  conversation.changed = now;
  if (conversation.isNamed) return;
  const first = conversation.lanes.flatMap((lane) => lane.messages).find((one) => one.role === "user");
  const text = first?.content || first?.files?.[0].name || "";
  conversation.title = text.trim().replace(/\s+/g, " ").slice(0, TITLE);
}

export function rename(conversation, title) {
  conversation.isNamed = title.trim() !== "";
  if (conversation.isNamed) conversation.title = title.trim().slice(0, 2 * TITLE);
  else touch(conversation, conversation.changed);
}

// Answer again the question that the message at `index` answers or asks; drop everything after it.
export function rewind(lane, index) {
  let end = index;
  while (end >= 0 && lane.messages[end].role === "assistant") end -= 1;
  return lane.messages.splice(end + 1);
}

// Replace the text of the question at `index`; it keeps its images and files.
export function edit(lane, index, content) {
  lane.messages.splice(index, lane.messages.length, { ...lane.messages[index], content });
}

// Delete a message; with a question or a call, its answers as well.
export function remove(lane, index) {
  const { role, calls } = lane.messages[index];
  const behind = lane.messages.slice(index + 1);
  let count = 0;
  if (role === "user") count = behind.findIndex((one) => one.role === "user");
  else if (calls?.length) count = behind.findIndex((one) => one.role !== "tool");
  lane.messages.splice(index, 1 + (count < 0 ? behind.length : count));
}

// Return the calls of the last answer that have no result yet.
export function openCalls(lane) {
  const last = lane.messages.findLastIndex((one) => one.role === "assistant");
  if (last < 0 || lane.messages.slice(last + 1).some((one) => one.role !== "tool")) return [];
  const answered = lane.messages.slice(last + 1).map((one) => one.callId);
  return (lane.messages[last].calls ?? []).filter((one) => !answered.includes(one.id));
}

// Return whether all words of a search are in the title or in a message.
export function matches(conversation, search) {
  const texts = conversation.lanes.flatMap((lane) => lane.messages.map((one) => one.content));
  const whole = [conversation.title, ...texts].join("\n").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => whole.includes(word));
}
