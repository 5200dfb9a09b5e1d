// One servable in the live view: what it does now, and how to call it.

import { Chart } from "./chart.js";
import { callLine, quoted } from "../call/example.js";
import { make } from "../make.js";
import { rates } from "./rates.js";
import { duration, rounded } from "../timing.js";

const count = (value) => value.toLocaleString("en");
const percent = (value) => `${(100 * value).toFixed(value < 0.1 && value > 0 ? 1 : 0)} %`;

// title, the value in a servable's row (undefined: not told), its text, the chart's top
const REQUESTS = [
  ["Running", (row) => row.requests?.running, count],
  ["Waiting", (row) => row.requests?.waiting, count],
  ["Requests/s", (_, rate) => rate.requests, rounded],
  ["p50", (row) => row.p50_ms, duration],
  ["p99", (row) => row.p99_ms, duration],
];
const ENGINE = [
  ["Batch size", (row) => row.engine?.num_running, count],
  ["Queue", (row) => row.engine?.num_waiting, count],
  ["Tokens/s", (_, rate) => rate.generated, rounded],
  ["Prompt tokens/s", (_, rate) => rate.prompt, rounded],
  ["KV blocks used", (row) => used(row.engine), percent, 1],
  ["Prefix cache hits", (_, rate) => rate.hits, percent, 1],
  ["Steps/s", (_, rate) => rate.steps, rounded],
];

const used = (engine) => (engine?.num_blocks > 0 ? taken(engine) / engine.num_blocks : undefined);
const taken = (engine) => engine.num_blocks - engine.num_free_blocks;
const isLanguageModel = (row) => row.engine !== undefined || row.model !== undefined;

export class ServablePanel {
  #charts = [];
  #facts = make("p", "facts");
  #before = null; // the last row, and when it was read

  constructor(row) {
    this.element = make("article", "card");
    const title = make("h3");
    title.append(row.name, " ", make("span", "version", `version ${row.version}`));
    const columns = [...REQUESTS, ...(isLanguageModel(row) ? ENGINE : [])];
    this.element.append(title, this.#facts, this.#group(columns), howTo(row));
  }

  show(row, time) {
    const rate = rates(this.#before, row, time);
    this.#before = { row, time };
    for (const [chart, value] of this.#charts) {
      const now = value(row, rate);
      chart.element.hidden = now === undefined; // null: told, but there is none yet
      chart.push(now ?? null);
    }
    this.#facts.textContent = facts(row).join(" · ");
  }

  #group(columns) {
    const group = make("div", "charts");
    for (const [title, value, shown, most] of columns) {
      const chart = new Chart(title, shown, most);
      this.#charts.push([chart, value]);
      group.append(chart.element);
    }
    return group;
  }
}

function facts(row) {
  const found = [`${row.num_workers} worker${row.num_workers === 1 ? "" : "s"}${places(row)}`];
  const { model, engine } = row;
  if (model) found.push(...[model.architecture, model.runtime, model.quantization].filter(Boolean));
  if (model?.max_model_len) found.push(`context ${count(model.max_model_len)}`);
  if (!engine?.num_blocks) return found;
  found.push(`${count(taken(engine))} of ${count(engine.num_blocks)} blocks`);
  found.push(`${count(engine.num_cached_blocks)} cached`);
  found.push(`${rounded(engine.num_generated_tokens)} tokens generated`);
  if (engine.num_preemptions) found.push(`preempted ${count(engine.num_preemptions)}×`);
  return found;
}

function places(row) {
  const nodes = (row.workers ?? []).filter((one) => one.state === "ready").map((one) => one.node);
  if (!nodes.some(Boolean)) return ""; // all are on the server's machine
  const here = (node) => (node ? `on ${node}` : "here");
  const each = [...new Set(nodes)].map((node) => [nodes.filter((one) => one === node).length, node]);
  return ` (${each.map(([number, node]) => `${number} ${here(node)}`).join(", ")})`;
}

function howTo(row) {
  const box = make("details", "how");
  box.append(make("summary", "", "How to call it"));
  const talks = isLanguageModel(row) && row.model?.can_generate !== false;
  if (talks) box.append(...calling("chat", chatLine(row.name)));
  if (row.model?.can_embed) box.append(...calling("embeddings", embedLine(row.name)));
  for (const [name, { inputs, outputs, input_specs: specs }] of Object.entries(row.methods ?? {})) {
    const signature = `${name}(${inputs.join(", ")}) → ${outputs.join(", ")}`;
    const path = `model/${encodeURIComponent(row.name)}:${encodeURIComponent(name)}`;
    box.append(...calling(signature, callLine(new URL(path, location.href), specs)));
  }
  box.open = !talks;
  return box;
}

function calling(signature, line) {
  const code = make("code", "", line);
  const copy = make("button", "copy", "Copy");
  copy.type = "button";
  copy.setAttribute("aria-label", `Copy the command for ${signature}`);
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(line);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  if (!navigator.clipboard) copy.hidden = true; // only where the page is trusted: https, localhost
  const pre = make("pre");
  pre.tabIndex = 0; // long lines scroll
  pre.setAttribute("aria-label", `Command for ${signature}`);
  pre.append(code);
  const command = make("div", "command");
  command.append(pre, copy);
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
  const url = new URL(`v1/${path}`, location.href);
  return `curl ${options}${url} -H 'content-type: application/json' -d ${quoted(JSON.stringify(body))}`;
}
