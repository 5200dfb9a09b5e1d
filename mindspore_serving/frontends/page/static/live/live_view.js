// Live view: polls GET servables once a second while it is visible.

import { Refused, call } from "../api.js";
import { keep, recall } from "../kept.js";
import { t } from "../texts.js";
import { inOrder, keyOf, rowsOf } from "./past.js";
import { ServablePanel } from "./servable_panel.js";

const PERIOD = 1000; // milliseconds
const SPANS = { minute: [60000, "span.minute"], ten: [600000, "span.ten"], hour: [3600000, "span.hour"] };
const find = (id) => document.getElementById(id);

export class LiveView {
  #panels = new Map();
  #past = null; // rows by servable, once they have come
  #timer = 0;
  #asking = false;
  #hooks;

  // Hooks: `seen(answer)` is called with each answer of GET servables, and `changed(servables)` when
  // the set of servables changes.
  constructor(hooks) {
    this.#hooks = hooks;
    find("span").append(...Object.entries(SPANS).map(([name, [, key]]) => new Option(t(key), name)));
    find("span").value = recall("span", "minute");
    find("span").addEventListener("change", () => {
      keep("span", find("span").value);
      this.#draw();
    });
    document.addEventListener("visibilitychange", () => this.look());
    this.look();
  }

  // Poll now, and then once a second.
  async look() {
    clearTimeout(this.#timer);
    if (document.hidden || this.#asking) return;
    const began = performance.now();
    this.#asking = true;
    try {
      const signal = AbortSignal.timeout(10 * PERIOD);
      const answer = await (await call("servables", { signal })).json();
      this.#past ??= rowsOf(await (await call("servables/history", { signal })).json());
      this.#show(inOrder(answer.servables), performance.now());
      this.#hooks.seen(answer);
      tell(t("connected"), "good");
    } catch (error) {
      tell(error instanceof Refused ? error.message : t("unreachable"), "bad");
    }
    this.#asking = false;
    const left = Math.max(PERIOD - (performance.now() - began), 100);
    this.#timer = setTimeout(() => this.look(), left);
  }

  #show(servables, now) {
    const before = [...this.#panels.keys()].join();
    const keys = servables.map(keyOf);
    for (const [key, panel] of this.#panels) {
      if (keys.includes(key)) continue;
      panel.element.remove();
      this.#panels.delete(key);
    }
    for (const row of servables) this.#panel(row, now).show(row, now);
    find("nothing").hidden = servables.length > 0;
    this.#draw();
    if (before === keys.join()) return;
    this.#panels = new Map(keys.map((key) => [key, this.#panels.get(key)]));
    find("servables").append(...[...this.#panels.values()].map((one) => one.element));
    this.#hooks.changed(servables);
  }

  #panel(row, now) {
    const key = keyOf(row);
    if (!this.#panels.has(key)) {
      this.#panels.set(key, new ServablePanel(row));
      for (const past of this.#past.get(key) ?? []) this.#panels.get(key).remember(past.row, now - past.age);
      this.#past.delete(key);
    }
    return this.#panels.get(key);
  }

  #draw() {
    const [span, key] = SPANS[find("span").value];
    for (const panel of this.#panels.values()) panel.draw(span, t(key));
  }
}

function tell(text, kind) {
  const state = find("state");
  if (state.textContent === text) return; // or screen readers would say it every second
  state.textContent = text;
  state.className = kind;
}
