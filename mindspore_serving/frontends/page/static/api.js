// Requests to the server: relative addresses, the API key, errors with the server's text.

const KEY = "mindspore-serving-key"; // kept until the tab is closed
let key = sessionStorage.getItem(KEY) ?? "";
let tellLocked = () => {};

export class Refused extends Error {
  // `field` is the request's invalid field, if the server names one.
  constructor(status, message, field = null) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

export function setKey(text) {
  key = text;
  sessionStorage.setItem(KEY, text);
}

// `callback(wasGiven)` is called when the server needs an API key, or refuses the present one.
export function onLocked(callback) {
  tellLocked = callback;
}

// Return the response to a request, whatever its status; `body` is JSON.
export function send(method, path, body, signal) {
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  return fetch(path, { method, body, headers, signal, cache: "no-store" });
}

// Return the response to a GET, or to a POST of `body` as JSON.  Throws Refused; AbortError by `signal`.
export async function call(path, { body, signal } = {}) {
  const hasBody = body !== undefined;
  const response = await send(hasBody ? "POST" : "GET", path, hasBody ? JSON.stringify(body) : undefined, signal);
  if (response.ok) return response;
  if (response.status === 401) tellLocked(key !== "");
  throw refusal(response.status, await response.text());
}

function refusal(status, text) {
  try {
    const json = JSON.parse(text);
    return new Refused(status, message(json) ?? `status ${status}`, json.error?.param);
  } catch {
    return new Refused(status, text.slice(0, 300) || `status ${status}`);
  }
}

// Return the text of an error's JSON in any of the server's protocols; undefined if it is no error.
export function message(json) {
  if (json.error?.message) return String(json.error.message);
  return json.error ?? json.error_msg ?? json.message;
}

// Iterate over the objects of a stream of server-sent events, until its end or [DONE].
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
