// A servable in the live view: present values, history, workers, and how to call it.

import { keep, recall } from "../kept.js";
import { make } from "../make.js";
import { number, t } from "../texts.js";
import { duration, rounded, size } from "../timing.js";
import { Chart } from "./chart.js";
import { howTo } from "./how_to.js";
import { rates } from "./rates.js";
import { Queue, summary, workerTable } from "./workers.js";

const percent = (value) => `${(100 * value).toFixed(value < 0.1 && value > 0 ? 1 : 0)} %`;

// A row: name, key of the title, value in a servable's row (undefined: not reported), its format, top of the chart
const REQUESTS = [
  ["Running", "chart.running", (row) => row.requests?.running, number],
  ["Waiting", "chart.waiting", (row) => row.requests?.waiting, number],
  ["Requests/s", "chart.requests", (_, rate) => rate.requests, rounded],
  ["p50", "chart.p50", (row) => row.p50_ms, duration],
  ["p99", "chart.p99", (row) => row.p99_ms, duration],
];
const ENGINE = [
  ["Tokens/s", "chart.tokens", (_, rate) => rate.generated, rounded],
  ["Prompt tokens/s", "chart.prompt", (_, rate) => rate.prompt, rounded],
  ["Batch size", "chart.batch", (row) => row.engine?.num_running, number],
  ["Queue", "chart.queue", (row) => row.engine?.num_waiting, number],
  ["Cache memory", "chart.memory", (row) => (row.engine?.num_cache_bytes_limit ? row.engine.num_cache_bytes : undefined), size],
  ["KV blocks used", "chart.blocks", (row) => used(row.engine), percent, 1],
  ["Prefix cache hits", "chart.hits", (_, rate) => rate.hits, percent, 1],
  ["Steps/s", "chart.steps", (_, rate) => rate.steps, rounded],
];

const used = (engine) => (engine?.num_blocks > 0 ? taken(engine) / engine.num_blocks : undefined);
const taken = (engine) => engine.num_blocks - engine.num_free_blocks;

export class ServablePanel {
  #charts = [];
  #facts = make("p", "facts");
  #queue = new Queue();
  #workers = make("details");
  #before = null; // the last row, and when it was read

  constructor(row) {
    const isLanguage = row.engine !== undefined || row.model !== undefined;
    const title = make("h3");
    title.append(row.name, " ", make("span", "version", t("version", { version: row.version })));
    const head = make("summary");
    head.append(title, this.#queue.element);
    this.#workers.append(make("summary", "", t("workers")), make("div"));
    this.element = make("details", "card");
    this.element.append(head, this.#facts, this.#group(isLanguage ? [...ENGINE, ...REQUESTS] : REQUESTS), this.#workers, howTo(row));
    this.element.open = !recall("closed", []).includes(row.name);
    this.element.addEventListener("toggle", () => this.#keep(row.name));
  }

  // Add the values of a time in milliseconds.
  remember(row, time) {
    const rate = rates(this.#before, row, time);
    this.#before = { row, time };
    for (const [chart, value] of this.#charts) {
      const now = value(row, rate);
      chart.element.hidden = now === undefined; // null: told, but there is none yet
      chart.push(now ?? null, time);
    }
  }

  // Show the present values.
  show(row, time) {
    this.remember(row, time);
    this.#facts.textContent = facts(row).join(" · ");
    this.#queue.show(row.requests ?? {});
    this.#workers.lastChild.replaceChildren(workerTable(row.workers ?? []));
  }

  draw(span, name) {
    if (!this.element.open) return;
    for (const [chart] of this.#charts) if (!chart.element.hidden) chart.draw(span, name);
  }

  #group(columns) {
    const group = make("div", "charts");
    for (const [id, key, value, shown, most] of columns) {
      const chart = new Chart(id, t(key), shown, most);
      this.#charts.push([chart, value]);
      group.append(chart.element);
    }
    return group;
  }

  #keep(name) {
    const others = recall("closed", []).filter((one) => one !== name);
    keep("closed", this.element.open ? others : [...others, name]);
  }
}

function facts(row) {
  const { model, engine } = row;
  const found = [summary(row)];
  if (model) found.push(...[model.architecture, model.runtime, model.quantization].filter(Boolean));
  if (model?.max_model_len) found.push(t("fact.context", { count: number(model.max_model_len) }));
  if (engine?.num_cache_bytes_limit) found.push(memory(engine));
  if (!engine?.num_blocks) return found;
  found.push(t("fact.blocks", { taken: number(taken(engine)), all: number(engine.num_blocks) }));
  found.push(t("cached", { count: number(engine.num_cached_blocks) }));
  found.push(t("fact.generated", { count: rounded(engine.num_generated_tokens) }));
  if (engine.num_preemptions) found.push(t("fact.preempted", { count: number(engine.num_preemptions) }));
  return found;
}

// Return how much memory the cache takes and may take; less while the machine has little.
function memory({ num_cache_bytes: used, num_cache_bytes_limit: limit, num_cache_bytes_target: target }) {
  const values = { used: size(used), limit: size(limit), target: size(target ?? limit) };
  return t(target < limit ? "fact.memory.now" : "fact.memory", values);
}
