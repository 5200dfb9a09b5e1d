// Commands for a terminal that call each method of a servable.

import { callLine, quoted } from "../call/example.js";
import { copyButton } from "../copy.js";
import { make } from "../make.js";
import { t } from "../texts.js";

export function howTo(row) {
  const box = make("details", "how");
  box.append(make("summary", "", t("how")));
  if (row.model && row.model.can_generate !== false) box.append(...calling("chat", chatLine(row.name)));
  if (row.model?.can_embed) box.append(...calling("embeddings", embedLine(row.name)));
  for (const [name, { inputs, outputs, input_specs: specs }] of Object.entries(row.methods ?? {})) {
    const signature = `${name}(${inputs.join(", ")}) → ${outputs.join(", ")}`;
    const path = `model/${encodeURIComponent(row.name)}:${encodeURIComponent(name)}`;
    box.append(...calling(signature, callLine(address(path), specs)));
  }
  return box;
}

function address(path) {
  return new URL(path, location.href.split("#")[0]);
}

function calling(signature, line) {
  const pre = make("pre");
  pre.tabIndex = 0; // long lines scroll
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", t("how.of", { signature }));
  pre.append(make("code", "", line));
  const command = make("div", "command");
  command.append(pre, copyButton(() => line, t("how.copy", { signature })));
  return [make("p", "signature", signature), command];
}

function chatLine(model) {
  const messages = [{ role: "user", content: "Hello" }];
  return openaiLine("-N ", "chat/completions", { model, messages, stream: true });
}

function embedLine(model) {
  return openaiLine("", "embeddings", { model, input: "Hello" });
}

function openaiLine(options, path, body) {
  return `curl ${options}${address(`v1/${path}`)} -H 'content-type: application/json' -d ${quoted(JSON.stringify(body))}`;
}
