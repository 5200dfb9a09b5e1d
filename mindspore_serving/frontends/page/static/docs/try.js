// Form that sends a request and shows the answer and the equivalent command.

import { send } from "../api.js";
import { quoted } from "../call/example.js";
import { make } from "../make.js";

const MOST = 20000; // characters of an answer that are shown

export function tryIt(verb, path, operation, example) {
  const box = make("form");
  const inputs = (operation.parameters ?? []).filter((one) => one.in === "path").map(parameter);
  const body = operation.requestBody ? make("textarea") : null;
  const line = make("pre");
  const answer = make("pre", "answer");
  const button = make("button", "", "Send");
  button.type = "submit";
  answer.hidden = true;
  if (body) {
    body.rows = 6;
    body.setAttribute("aria-label", "Body");
    body.value = example === undefined ? "{}" : JSON.stringify(example, null, 1);
  }
  const url = () => inputs.reduce((at, { name, input }) => at.replace(`{${name}}`, encodeURIComponent(input.value)), path).slice(1);
  const tell = () => (line.textContent = command(verb, url(), body?.value));
  const row = make("div", "send");
  row.append(button, ...inputs.map(({ label }) => label));
  box.append(...(body ? [body] : []), row, line, answer);
  box.addEventListener("input", tell);
  box.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    answer.hidden = false;
    answer.textContent = "…";
    answer.textContent = await ask(verb, url(), body?.value);
    button.disabled = false;
  });
  tell();
  return box;
}

function parameter({ name }) {
  const label = make("label", "", `${name} `);
  const input = make("input");
  input.required = true;
  label.append(input);
  return { name, label, input };
}

function command(verb, path, body) {
  const parts = [`curl ${verb === "get" ? "" : `-X ${verb.toUpperCase()} `}${new URL(path || "./", location.href)}`];
  if (body !== undefined) parts.push("-H 'content-type: application/json'", `-d ${quoted(body)}`);
  return parts.join(" ");
}

async function ask(verb, path, body) {
  try {
    const start = performance.now();
    const response = await send(verb.toUpperCase(), path || "./", body);
    const text = await response.text();
    const time = Math.round(performance.now() - start);
    return `${response.status}, ${time} ms\n${pretty(text).slice(0, MOST)}`;
  } catch (error) {
    return String(error);
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}
