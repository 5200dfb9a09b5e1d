// Streamed answer: adds the chunks to a message.  Pure.

// Until its end an answer is marked as stopped, in case the browser leaves the page.
export function begin(model) {
  return { role: "assistant", content: "", model, mark: "stopped" };
}

// Add a chunk of /v1/chat/completions that arrived `seconds` after the request.
export function take(message, chunk, seconds) {
  if (chunk.usage) message.usage = counts(chunk.usage);
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, tool_calls: calls, ...delta } = choice.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (thought) message.reasoning = (message.reasoning ?? "") + thought;
  if (content) message.content += content;
  for (const call of calls ?? []) takeCall(message, call);
  const tokens = choice.logprobs?.content;
  if (tokens?.length) (message.tokens ??= []).push(...tokens.map(toToken));
  if (content || thought || calls?.length) count(message, tokens?.length ?? 1, seconds);
  if (choice.finish_reason) message.mark = choice.finish_reason === "length" ? "length" : "";
  if (message.mark === "length") dropBroken(message);
}

// Drop the replacement characters of a character whose last bytes would have been in the next token.
function dropBroken(message) {
  for (const name of ["content", "reasoning"]) {
    if (message[name]) message[name] = message[name].replace(/\ufffd+$/, "");
  }
  while (/^\ufffd+$/.test(message.tokens?.at(-1)?.text)) message.tokens.pop();
}

export function isEmpty({ content, reasoning, calls }) {
  return !content && !reasoning && !calls?.length;
}

function takeCall(message, { index, id, function: given }) {
  const calls = (message.calls ??= []);
  const call = (calls[index] ??= { id: id ?? `call_${index}`, name: "", arguments: "" });
  call.name += given?.name ?? "";
  call.arguments += given?.arguments ?? "";
}

function toToken({ token, logprob, top_logprobs: others }) {
  return { text: token, logprob, others: (others ?? []).map((one) => [one.token, one.logprob]) };
}

function counts(usage) {
  return {
    prompt: usage.prompt_tokens,
    completion: usage.completion_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
  };
}

function count(message, pieces, seconds) {
  const times = (message.times ??= { wait: seconds, took: 0, pieces: 0 });
  times.took = seconds - times.wait;
  times.pieces += pieces;
}
