// The chat: a conversation with one model over POST v1/chat/completions.
// Text of models and people goes into text nodes only.

import { Answer } from "./answer.js";
import { Refused, call } from "./api.js";
import { Settings } from "./settings.js";

const find = (id) => document.getElementById(id);

export class Chat {
  #turns = []; // {role, content}, what the model is sent
  #running = null; // AbortController of the answer that comes
  #settings = new Settings();
  #models = find("model");
  #log = find("log");
  #text = find("text");

  constructor() {
    find("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    find("stop").addEventListener("click", () => this.#stop());
    find("new").addEventListener("click", () => this.#restart());
    this.#text.addEventListener("input", () => this.#fit());
    this.#text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#stop();
    });
  }

  // Ask for the models again, and offer those that can talk: `servables` may say that one cannot.
  async refreshModels(servables) {
    const silent = servables.filter((row) => row.model?.can_generate === false);
    let names = [];
    try {
      const found = await (await call("v1/models")).json();
      names = found.data.map((model) => model.id);
      names = names.filter((name) => !silent.some((row) => row.name === name));
    } catch (error) {
      if (!(error instanceof Refused)) return; // the live view tells that nobody answers
    }
    const chosen = this.#models.value || this.#settings.model;
    this.#models.replaceChildren(...names.map((name) => new Option(name)));
    if (names.includes(chosen)) this.#models.value = chosen;
    const can = names.length ? "yes" : "no";
    if (document.body.dataset.chat === can) return;
    document.body.dataset.chat = can;
    find(names.length ? "view-chat" : "view-live").checked = true;
  }

  #send() {
    const content = this.#text.value.trim();
    if (!content || this.#running) return;
    this.#text.value = "";
    this.#fit();
    this.#turns.push({ role: "user", content });
    this.#show("user", "You").append(content);
    this.#answer(content);
  }

  async #answer(content) {
    const turns = this.#turns; // another list after "New chat"
    const answer = new Answer(this.#show("assistant", this.#models.value), this.#log);
    this.#running = new AbortController();
    find("numbers").textContent = "";
    this.#setBusy(true);
    try {
      await answer.read(this.#request(), this.#running.signal);
    } catch (error) {
      answer.fail(error);
    }
    this.#running = null;
    this.#setBusy(false);
    if (turns !== this.#turns) return;
    find("numbers").textContent = answer.numbers;
    if (answer.text) {
      turns.push({ role: "assistant", content: answer.text });
    } else {
      turns.pop(); // a question without answer is asked again, not carried along
      if (!this.#text.value) this.#text.value = content;
      this.#fit();
    }
    this.#text.focus();
  }

  #request() {
    const { system, sampling } = this.#settings.read();
    const first = system ? [{ role: "system", content: system }] : [];
    return {
      model: this.#models.value,
      messages: [...first, ...this.#turns],
      stream: true,
      stream_options: { include_usage: true },
      ...sampling,
    };
  }

  #stop() {
    this.#running?.abort();
  }

  #restart() {
    this.#stop();
    this.#turns = [];
    this.#log.replaceChildren();
    find("numbers").textContent = "";
    this.#text.focus();
  }

  #setBusy(isBusy) {
    find("send").hidden = isBusy;
    find("stop").hidden = !isBusy;
    this.#log.setAttribute("aria-busy", isBusy); // read out when it is complete, not by the word
  }

  #show(role, name) {
    const turn = document.createElement("li");
    const who = document.createElement("span");
    const said = document.createElement("div");
    turn.className = role;
    who.className = "who";
    said.className = "said";
    who.append(name);
    turn.append(who, said);
    this.#log.append(turn);
    this.#log.scrollTop = this.#log.scrollHeight;
    return said;
  }

  #fit() {
    this.#text.style.height = "auto";
    this.#text.style.height = `${Math.min(this.#text.scrollHeight + 2, 160)}px`;
  }
}
