// A servable in the operator's view: its versions, their workers, and actions.

import { Refused, call } from "../api.js";
import { workerTable } from "../live/workers.js";
import { button, iconButton, make } from "../make.js";
import { t } from "../texts.js";
import { shareOf } from "./states.js";

const STATES = { READY: "state.ready", LOADING: "state.loading", UNAVAILABLE: "state.unavailable" };
// Requests to send, and the keys of the texts before and after.
const LOAD = ["load", {}, "load.runs", "load.done"];
const LOAD_AGAIN = ["load", { parameters: { reload: true } }, "load.runs", "load.done"];
const UNLOAD = ["unload", {}, "unload.runs", "unload.done"];

export class ModelPanel {
  element = make("section", "model");
  #name;
  #acted;
  #shown = ""; // the state that is shown, as JSON
  #isLoading = false;
  #row = make("div", "row");
  #said = make("p", "hint");
  #error = make("div", "failure");
  #versions = make("div", "versions");
  #load = button(t("load"), () => this.#act(LOAD));
  #again = button(t("load.again"), () => this.#act(LOAD_AGAIN));
  #unload = button(t("unload"), () => this.#ask());

  // `acted` is called when the servable may have changed.
  constructor(name, acted) {
    this.#name = name;
    this.#acted = acted;
    const title = make("h3", "", name);
    this.element.setAttribute("aria-label", name);
    this.#said.setAttribute("role", "status");
    this.#error.setAttribute("role", "alert");
    this.#load.setAttribute("aria-label", t("load.of", { name }));
    this.#again.setAttribute("aria-label", t("load.again.of", { name }));
    this.#unload.setAttribute("aria-label", t("unload.of", { name }));
    this.#buttons();
    const bar = make("div", "bar");
    bar.append(title, this.#row);
    this.element.append(bar, this.#said, this.#error, this.#versions);
  }

  // True while its state changes.
  get isBusy() {
    return this.#load.disabled || this.#isLoading;
  }

  // Show an entry of `merged`.
  show(model) {
    this.#isLoading = model.versions.some((one) => one.state === "LOADING");
    const shown = JSON.stringify(model);
    if (shown === this.#shown) return; // what is opened, and selected, stays
    this.#shown = shown;
    this.#load.hidden = model.isLoaded;
    this.#again.hidden = this.#unload.hidden = !model.isLoaded;
    const opened = [...this.#versions.querySelectorAll("details")].map((one) => one.open);
    this.#versions.replaceChildren(...model.versions.map(versionLine));
    this.#versions.querySelectorAll("details").forEach((one, at) => { one.open = opened[at] ?? false; });
  }

  #buttons() {
    this.#row.replaceChildren(this.#load, this.#again, this.#unload);
  }

  // Unloading needs a second click.
  #ask() {
    const stay = () => {
      this.#buttons();
      this.#said.textContent = "";
      this.#unload.focus();
    };
    const sure = button(t("unload.sure"), () => this.#act(UNLOAD), "danger");
    const cancel = button(t("cancel"), stay);
    this.#row.replaceChildren(sure, cancel);
    this.#said.textContent = t("unload.warning", { name: this.#name });
    this.#row.onkeydown = (event) => event.key === "Escape" && cancel.isConnected && stay();
    cancel.focus();
  }

  async #act([what, body, runs, done]) {
    this.#buttons();
    this.#setBusy(true, t(runs));
    this.#fail("");
    try {
      await call(`v2/repository/models/${encodeURIComponent(this.#name)}/${what}`, { body });
      this.#setBusy(false, t(done));
    } catch (error) {
      this.#setBusy(false, "");
      this.#fail(error instanceof Refused ? error.message : t("unreachable"));
    }
    await this.#acted();
    if (!document.activeElement || document.activeElement === document.body) this.#row.querySelector("button:not([hidden])")?.focus();
  }

  #setBusy(isBusy, text) {
    for (const one of [this.#load, this.#again, this.#unload]) one.disabled = isBusy;
    this.#said.textContent = text;
  }

  #fail(text) {
    const close = iconButton("close", t("error.close"), () => this.#fail(""));
    this.#error.replaceChildren(...(text ? [make("p", "", text), close] : []));
  }
}

function progressBar(share, version) {
  const made = make("progress");
  if (share) made.value = share; // else it only moves
  made.setAttribute("aria-label", t("load.share", { version }));
  return made;
}

function versionLine({ version, state, reason, workers }) {
  const line = make("div", `state ${state.toLowerCase()}`);
  const text = [version && t("version", { version }), t(STATES[state]), reason].filter(Boolean).join(" · ");
  line.append(make("p", "", text));
  const share = shareOf({ state, reason });
  if (share !== null) line.append(progressBar(share, version));
  if (!workers.length) return line;
  const box = make("details");
  box.append(make("summary", "", t("workers.ready", { ready: workers.filter((one) => one.state === "ready").length, all: workers.length })));
  box.append(workerTable(workers));
  line.append(box);
  return line;
}
