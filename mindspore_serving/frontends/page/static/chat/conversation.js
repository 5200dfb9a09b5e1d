// Conversations as data, and what can be done to them.  Pure: no page, no server, no store.
//
// A conversation is {id, title, isNamed, changed, lanes}: a lane for each model that answers, one or
// two.  A lane is {model, messages}.  A message is {role, content} and, by its role:
//   user:      images [{name, url}]
//   assistant: model, reasoning, calls [{id, name, arguments}], tokens [{text, logprob, others}],
//              mark ("", "stopped" or "length"), error, usage, times {wait, took, pieces}
//   tool:      callId, name

const TITLE = 60; // characters

export function start(model, now = Date.now()) {
  const id = `${now.toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
  return { id, title: "", isNamed: false, changed: now, lanes: [{ model, messages: [] }] };
}

export function ask(conversation, content, images = []) {
  const more = images.length ? { images } : {};
  for (const lane of conversation.lanes) lane.messages.push({ role: "user", content, ...more });
  touch(conversation);
}

// It was changed now, and is called by its first question unless somebody has named it.
export function touch(conversation, now = Date.now()) {
  conversation.changed = now;
  if (conversation.isNamed) return;
  const first = conversation.lanes.flatMap((lane) => lane.messages).find((one) => one.role === "user");
  conversation.title = (first?.content ?? "").trim().replace(/\s+/g, " ").slice(0, TITLE);
}

export function rename(conversation, title) {
  conversation.isNamed = title.trim() !== "";
  if (conversation.isNamed) conversation.title = title.trim().slice(0, 2 * TITLE);
  else touch(conversation, conversation.changed);
}

// Answer anew what the message at `index` answers, or asks: everything behind that is gone.
export function rewind(lane, index) {
  let end = index;
  while (end >= 0 && lane.messages[end].role === "assistant") end -= 1;
  return lane.messages.splice(end + 1);
}

// Ask the question at `index` in other words, about the same pictures.
export function edit(lane, index, content) {
  lane.messages.splice(index, lane.messages.length, { ...lane.messages[index], content });
}

// Delete a message, and with a question or a call its answers.
export function remove(lane, index) {
  const { role, calls } = lane.messages[index];
  const behind = lane.messages.slice(index + 1);
  let count = 0;
  if (role === "user") count = behind.findIndex((one) => one.role === "user");
  else if (calls?.length) count = behind.findIndex((one) => one.role !== "tool");
  lane.messages.splice(index, 1 + (count < 0 ? behind.length : count));
}

// Calls of the last answer that nobody has answered yet.
export function openCalls(lane) {
  const last = lane.messages.findLastIndex((one) => one.role === "assistant");
  if (last < 0 || lane.messages.slice(last + 1).some((one) => one.role !== "tool")) return [];
  const answered = lane.messages.slice(last + 1).map((one) => one.callId);
  return (lane.messages[last].calls ?? []).filter((one) => !answered.includes(one.id));
}

// Whether the words of a search are all in the title or in a message.
export function matches(conversation, search) {
  const texts = conversation.lanes.flatMap((lane) => lane.messages.map((one) => one.content));
  const whole = [conversation.title, ...texts].join("\n").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => whole.includes(word));
}
