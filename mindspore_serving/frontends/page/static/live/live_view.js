// The live view: asks GET servables once a second while somebody looks.

import { Refused, call } from "../api.js";
import { t } from "../texts.js";
import { ServablePanel } from "./servable_panel.js";

const PERIOD = 1000; // milliseconds
const find = (id) => document.getElementById(id);

export class LiveView {
  #panels = new Map();
  #timer = 0;
  #asking = false;
  #changed;

  // `changed` is called with all servables when others are there than before.
  constructor(changed) {
    this.#changed = changed;
    document.addEventListener("visibilitychange", () => this.look());
    this.look();
  }

  // Look now, and then once a second.
  async look() {
    clearTimeout(this.#timer);
    if (document.hidden || this.#asking) return;
    const began = performance.now();
    this.#asking = true;
    try {
      const response = await call("servables", { signal: AbortSignal.timeout(10 * PERIOD) });
      this.#show((await response.json()).servables, performance.now());
      tell(t("connected"), "good");
    } catch (error) {
      tell(error instanceof Refused ? error.message : t("unreachable"), "bad");
    }
    this.#asking = false;
    const left = Math.max(PERIOD - (performance.now() - began), 100);
    this.#timer = setTimeout(() => this.look(), left);
  }

  #show(servables, now) {
    const seen = new Set();
    let isOther = false;
    for (const servable of servables) {
      const key = JSON.stringify([servable.name, servable.version]);
      seen.add(key);
      if (!this.#panels.has(key)) {
        this.#panels.set(key, new ServablePanel(servable));
        find("servables").append(this.#panels.get(key).element);
        isOther = true;
      }
      this.#panels.get(key).show(servable, now);
    }
    for (const [key, panel] of this.#panels) {
      if (seen.has(key)) continue;
      panel.element.remove();
      this.#panels.delete(key);
      isOther = true;
    }
    find("nothing").hidden = seen.size > 0;
    if (isOther) this.#changed(servables);
  }
}

function tell(text, kind) {
  const state = find("state");
  if (state.textContent === text) return; // or screen readers would say it every second
  state.textContent = text;
  state.className = kind;
}
