// Page at /docs: the operations of /openapi.json, and a form to send each request.

import { call, onLocked, setKey } from "../api.js";
import { schemaOf, showSchema } from "./schema.js";
import { make } from "../make.js";
import { tryIt } from "./try.js";

const find = (id) => document.getElementById(id);
const JSON_TYPE = "application/json";
const CHAT = "/v1/chat/completions";
const FIRST = ["OpenAI", "Anthropic", "Ollama"]; // sections, where a language model is served

onLocked((wasGiven) => {
  find("key-form").hidden = false;
  find("key-error").textContent = wasGiven ? "The server does not accept this key." : "";
  find("key").focus();
});

find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(find("key").value);
  find("key-form").hidden = true;
  load();
});

find("find").addEventListener("input", () => {
  const wanted = find("find").value.trim().toLowerCase();
  for (const one of document.querySelectorAll(".operation")) {
    one.hidden = !one.dataset.words.includes(wanted);
  }
  for (const one of document.querySelectorAll("main > section")) {
    one.hidden = !one.querySelector(".operation:not([hidden])");
  }
});

async function load() {
  try {
    show(await (await call("openapi.json")).json());
  } catch (error) {
    find("state").textContent = error.message;
    find("state").className = "bad";
  }
}

function show(whole) {
  const sections = new Map(ordered(whole).map((tag) => [tag.name, section(tag)]));
  let count = 0;
  const paths = Object.entries(whole.paths).sort(([one], [other]) => (other === CHAT) - (one === CHAT));
  for (const [path, verbs] of paths) {
    for (const [verb, operation] of Object.entries(verbs)) {
      sections.get(operation.tags[0]).append(entry(whole, verb, path, operation));
      count += 1;
    }
  }
  find("sections").replaceChildren(...sections.values());
  find("state").textContent = `version ${whole.info.version}, ${count} operations`;
  find("state").className = "good";
}

// Return the sections, those that most clients of a language model use first.
function ordered({ tags, paths }) {
  const first = CHAT in paths ? FIRST : [];
  const rank = ({ name }) => (first.includes(name) ? first.indexOf(name) : first.length);
  return [...tags].sort((one, other) => rank(one) - rank(other));
}

function section({ name, description }) {
  const made = make("section");
  made.append(make("h2", "", name), make("p", "", description));
  return made;
}

// Return an operation, whose details are created when it is opened.
function entry(whole, verb, path, operation) {
  const box = make("details", "operation");
  box.dataset.words = `${verb} ${path} ${operation.summary}`.toLowerCase();
  const line = make("summary");
  line.append(make("span", `verb ${verb}`, verb.toUpperCase()), make("code", "", path));
  line.append(make("span", "about", operation.summary));
  box.append(line);
  box.addEventListener("toggle", () => box.append(details(whole, verb, path, operation)), { once: true });
  return box;
}

function details(whole, verb, path, operation) {
  const box = make("div");
  const content = operation.requestBody?.content[JSON_TYPE];
  if (content) box.append(make("h3", "", "Body"), showSchema(whole, content.schema));
  for (const [status, answer] of Object.entries(operation.responses)) {
    for (const [kind, { schema }] of Object.entries(schemaOf(whole, answer).content ?? {})) {
      const title = `Answer ${status}, ${kind}`;
      if (Object.keys(schemaOf(whole, schema)).length) box.append(make("h3", "", title), showSchema(whole, schema));
    }
  }
  box.append(make("h3", "", "Send it"), tryIt(verb, path, operation, content?.example));
  return box;
}

load();
