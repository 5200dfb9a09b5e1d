// Column of one model: its name, its messages, and the answer being streamed.

import { iconButton, make } from "../make.js";
import { number, t } from "../texts.js";
import { resultForm } from "./calls.js";
import { estimateText, tokensOf } from "./context.js";
import { edit, openCalls, remove, rewind } from "./conversation.js";
import { MessageView } from "./message_view.js";
import { maxTokensOf } from "./numbers.js";
import { read } from "./reading.js";
import { begin, isEmpty } from "./reply.js";
import { toRequest } from "./request.js";
import { welcome } from "./welcome.js";

const NEAR = 60; // pixels from the end, as which it counts

export class LaneView {
  element = make("section", "lane");
  #data;
  #hooks;
  #models = [];
  #views = [];
  #running = null; // AbortController of the answer that comes
  #before = { count: 0, length: 0 }; // tokens of the conversation when it began, characters of its message
  #select = make("select", "model");
  #count = make("span", "hint");
  #log = make("div", "log");
  #error = make("div", "failure");
  #save;

  // `data` is a lane of a conversation.  Hooks: `settings()` returns those of the chat, `changed()` is
  // called when the messages change, `busy()` when answers begin and end, `explain(error)` returns a
  // text, `suggest(text)` sends a question, `save()` saves the lane as a file, `place` is 1 or 2, and `close`, if given, removes the lane.
  constructor(data, hooks) {
    this.#data = data;
    this.#hooks = hooks;
    this.#select.setAttribute("aria-label", t("model"));
    this.#select.addEventListener("change", () => this.#choose());
    const head = make("div", "lane-head");
    this.#save = iconButton("download", t("save.file"), hooks.save);
    head.append(this.#select, this.#count, this.#save);
    if (hooks.close) head.append(iconButton("close", t("compare.close"), hooks.close));
    this.#log.setAttribute("role", "log");
    this.#log.setAttribute("aria-label", t("conversation"));
    this.#log.tabIndex = 0;
    this.#error.setAttribute("role", "alert");
    this.element.append(head, this.#log, this.#error);
    this.render();
  }

  get isBusy() {
    return this.#running !== null;
  }

  get model() {
    return this.#data.model;
  }

  // Whether the model takes "image" or "audio".
  takes(kind) {
    return this.entry?.input_modalities?.includes(kind) ?? false;
  }

  // The model as GET /v1/models has it, undefined if it is not served.
  get entry() {
    return this.#models.find((one) => one.id === this.#data.model);
  }

  // `models` are those that can chat, entries of GET /v1/models.
  setModels(models) {
    this.#models = models;
    const names = models.map((one) => one.id);
    this.#data.model ||= names[0] ?? "";
    const gone = names.includes(this.#data.model) || !this.#data.model ? [] : [new Option(t("model.gone", { name: this.#data.model }), this.#data.model)];
    this.#select.replaceChildren(...gone, ...names.map((name) => new Option(name)));
    this.#select.value = this.#data.model;
    this.#show();
  }

  stop() {
    this.#running?.abort();
  }

  // Request the next answer, or more of the last.  Return whether anything arrived.
  async answer(isContinued = false) {
    this.fail(null);
    let message;
    try {
      const limit = { maxTokens: this.entry && maxTokensOf(this.entry), isContinued };
      const body = toRequest(this.#data, this.#hooks.settings(), limit);
      message = this.#begin(isContinued, body);
      this.#setRunning(new AbortController());
      await read(body, message, this.#running.signal, () => this.#show());
      if (message.mark === "length" && this.#isFull(message)) message.mark = "context";
    } catch (error) {
      if (error.name !== "AbortError") this.#failed(message, error);
    }
    this.#setRunning(null);
    const isAnswered = message !== undefined && !isEmpty(message);
    if (message && !isAnswered) this.#data.messages.pop();
    this.render();
    this.#hooks.changed();
    return isAnswered;
  }

  // Show an error just above the input; null clears it.
  fail(error) {
    this.#error.replaceChildren();
    if (error === null) return;
    this.#error.append(make("p", "", this.#hooks.explain(error)), iconButton("close", t("error.close"), () => this.fail(null)));
  }

  render() {
    const { messages } = this.#data;
    const coming = this.isBusy ? messages.at(-1) : null;
    this.#views = messages.map((one, at) => new MessageView(one, this.isBusy ? {} : this.#acts(one, at), one === coming));
    this.#log.replaceChildren(...this.#views.map((one) => one.element));
    const calls = this.isBusy ? [] : openCalls(this.#data);
    if (calls.length) this.#log.append(this.#results(calls));
    this.#save.hidden = !messages.length;
    if (!messages.length) this.#log.append(welcome(this.#hooks.suggest));
    this.#log.scrollTop = this.#log.scrollHeight;
    this.#showCount();
  }

  #begin(isContinued, body) {
    const { messages, model } = this.#data;
    if (!isContinued) messages.push(begin(model));
    const message = messages.at(-1);
    this.#before = { count: tokensOf(messages).count, length: isContinued ? message.content.length : 0 };
    if (isContinued) Object.assign(message, { times: undefined, usage: undefined, error: "", mark: "stopped" });
    if (!body.logprobs) delete message.tokens;
    return message;
  }

  #failed(message, error) {
    if (message) message.error = this.#hooks.explain(error);
    this.fail(error);
  }

  #setRunning(running) {
    this.#running = running;
    this.#log.setAttribute("aria-busy", running !== null); // read out when it is complete
    if (running) this.render();
    this.#hooks.busy();
  }

  // Render what has arrived once per frame, as fast models send more chunks than there are frames.
  #show() {
    this.#showCount();
    if (!this.isBusy) return;
    const isAtEnd = this.#log.scrollHeight - this.#log.scrollTop - this.#log.clientHeight < NEAR;
    this.#views.at(-1).showSoon(() => {
      if (isAtEnd) this.#log.scrollTop = this.#log.scrollHeight;
    });
  }

  #showCount() {
    this.element.setAttribute("aria-label", t("lane", { place: this.#hooks.place, model: this.#data.model }));
    const most = this.entry?.max_model_len;
    const { count, isExact } = this.#used();
    const used = isExact ? number(count) : t("about", { what: number(count) });
    this.#count.textContent = most ? t("context", { used, most: number(most) }) : "";
  }

  // While an answer comes, its tokens count as they come.
  #used() {
    const { messages } = this.#data;
    const last = messages.at(-1);
    if (!this.isBusy || last?.usage) return tokensOf(messages);
    const { count, length } = this.#before;
    const arrived = estimateText((last.reasoning ?? "") + last.content.slice(length));
    return { count: count + Math.max(arrived, last.times?.pieces ?? 0), isExact: false };
  }

  #isFull({ usage }) {
    return usage !== undefined && usage.prompt + usage.completion >= this.entry?.max_model_len;
  }

  #acts(message, at) {
    const isLast = at === this.#data.messages.length - 1;
    const acts = { remove: () => this.#change(() => remove(this.#data, at)) };
    if (message.role === "assistant" || (isLast && message.role !== "system")) acts.redo = () => this.#redo(at);
    if (message.role !== "tool") acts.edit = () => this.#edit(at);
    const isOpen = isLast && message.role === "assistant" && message.content && !message.calls;
    if (isOpen && message.mark !== "context") acts.resume = () => this.answer(true);
    return acts;
  }

  async #redo(at) {
    const gone = rewind(this.#data, at);
    if (!(await this.answer())) this.#change(() => this.#data.messages.push(...gone));
  }

  #edit(at) {
    const message = this.#data.messages[at];
    const isQuestion = message.role === "user";
    this.#views[at].edit((text) => {
      if (text === null || !(text.trim() || message.images || message.files)) return this.render();
      if (!isQuestion) return this.#change(() => Object.assign(message, { content: text, tokens: undefined }));
      this.#change(() => edit(this.#data, at, text.trim()));
      this.answer();
    }, isQuestion ? t("message.resend") : t("save"));
  }

  #results(calls) {
    const line = make("div", "message tool");
    const send = (results) => {
      this.#data.messages.push(...results);
      this.answer();
    };
    line.append(resultForm(calls, send));
    return line;
  }

  #change(act) {
    act();
    this.render();
    this.#hooks.changed();
  }

  #choose() {
    this.#data.model = this.#select.value;
    this.#showCount();
    this.#hooks.changed();
  }
}
