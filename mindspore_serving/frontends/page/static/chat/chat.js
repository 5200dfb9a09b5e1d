// Chat view: the open conversation, and how the parts of the view work together.

import { Refused, call } from "../api.js";
import { download } from "../download.js";
import { keep, recall } from "../kept.js";
import { t } from "../texts.js";
import { fileName, toFile } from "./chat_file.js";
import { Composer } from "./composer.js";
import { ask, start, touch } from "./conversation.js";
import { dropImages } from "./kept_images.js";
import { LaneView } from "./lane.js";
import { ConversationList } from "./list.js";
import { Unusable } from "./request.js";
import { Settings } from "./settings.js";
import { Store } from "./store.js";

const SAVED = 2000; // milliseconds between two times while an answer comes
const find = (id) => document.getElementById(id);

export class Chat {
  #settings = new Settings();
  #store = new Store();
  #models = [];
  #lanes = [];
  #conversation = start(recall("model", ""));
  #list;
  #composer;

  // Load the stored conversations, then show the chat.
  static async open() {
    const chat = new Chat();
    chat.#list = new ConversationList(await chat.#store.open(), {
      open: (one) => chat.#show(one),
      save: (one) => chat.#put(one),
      forget: (one) => chat.#forget(one),
      start: () => chat.#restart(),
    });
    find("not-kept").hidden = chat.#store.isLasting;
    chat.#listen();
    chat.#show(chat.#conversation);
    return chat;
  }

  // What is typed before the stored conversations are read stays in the input.
  #listen() {
    this.#composer = new Composer({
      send: (text, attached) => this.#send(text, attached),
      refuse: (kind) => this.#refuse(kind),
      fail: (text) => this.#lanes[0].fail(text ? new Error(text) : null),
      stop: () => this.#stop(),
      again: () => document.querySelector(".message.user:nth-last-child(-n+2) .actions .edit")?.click(),
    });
    find("compare").addEventListener("click", () => this.#compare());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.target.closest("dialog, .editing, #list")) this.#stop();
      if (event.key.toLowerCase() === "o" && event.ctrlKey && event.shiftKey) {
        event.preventDefault();
        this.#restart();
      }
    });
    setInterval(() => this.#lanes.some((one) => one.isBusy) && this.#save(), SAVED);
  }

  // Fetch the models again and offer those that can chat; `servables` may rule some out.
  // Return whether there is one.
  async refreshModels(servables) {
    const silent = servables.filter((row) => row.model?.can_generate === false).map((row) => row.name);
    try {
      const found = await (await call("v1/models")).json();
      this.#models = found.data.filter((one) => !silent.includes(one.id));
    } catch (error) {
      if (!(error instanceof Refused)) return this.#models.length > 0; // the live view says that nobody answers
      this.#models = [];
    }
    if (!this.#models.some((one) => one.id === this.#conversation.lanes[0].model) && !this.#conversation.title) {
      this.#conversation.lanes[0].model = "";
    }
    for (const lane of this.#lanes) lane.setModels(this.#models);
    this.#adapt();
    find("compare").hidden = this.#conversation.lanes.length > 1;
    return this.#models.length > 0;
  }

  // Return why files of a kind, "image" or "audio", cannot be sent, "" if they can.
  #refuse(kind) {
    const names = this.#lanes.filter((one) => !one.takes(kind)).map((one) => one.model);
    return names.length ? t(kind === "audio" ? "audio.unsupported" : "image.unsupported", { model: names.join(", ") }) : "";
  }

  // Offer what the models that answer can do.
  #adapt() {
    this.#settings.models = this.#lanes.map((one) => one.entry);
    find("camera").hidden = this.#refuse("image") !== "";
    find("microphone").hidden = this.#refuse("audio") !== "";
  }

  async #send(text, attached) {
    const conversation = this.#conversation;
    ask(conversation, text, attached);
    const answered = await Promise.all(this.#lanes.map((one) => one.answer()));
    if (!answered.some(Boolean)) this.#takeBack(conversation, text, attached);
    if (conversation === this.#conversation && !document.activeElement.matches("input, textarea")) this.#composer.focus();
  }

  // A question without an answer returns to the input, and is no part of the conversation.
  #takeBack(conversation, text, attached) {
    for (const lane of conversation.lanes) lane.messages.pop();
    touch(conversation);
    if (conversation.lanes[0].messages.length) this.#put(conversation);
    else this.#forgetEmpty(conversation);
    if (conversation !== this.#conversation) return;
    for (const lane of this.#lanes) lane.render();
    if (this.#composer.text || this.#composer.attached.length) return; // something else was begun
    this.#composer.text = text;
    this.#composer.attached = attached;
  }

  #forgetEmpty(conversation) {
    this.#list.all = this.#list.all.filter((one) => one !== conversation);
    this.#list.show();
    this.#store.remove(conversation.id);
  }

  #stop() {
    for (const lane of this.#lanes) lane.stop();
  }

  #show(conversation) {
    this.#stop();
    this.#conversation = conversation;
    const isTwo = conversation.lanes.length > 1;
    this.#lanes = conversation.lanes.map((data) => this.#lane(conversation, data));
    for (const lane of this.#lanes) lane.setModels(this.#models);
    this.#adapt();
    find("lanes").replaceChildren(...this.#lanes.map((one) => one.element));
    for (const lane of this.#lanes) lane.render(); // now that it has a size, to its end
    find("compare").hidden = isTwo;
    document.body.classList.remove("listing");
    this.#busy();
    this.#list.show(conversation);
    this.#composer.focus();
  }

  #lane(conversation, data) {
    return new LaneView(data, {
      settings: () => this.#settings.values,
      changed: () => this.#changed(conversation),
      busy: () => this.#busy(),
      explain: (error) => this.#explain(error),
      suggest: (text) => this.#send(text, []),
      save: () => download(toFile(data, this.#settings.values), fileName(conversation.title)),
      place: conversation.lanes.indexOf(data) + 1,
      close: conversation.lanes.length > 1 ? () => this.#close(data) : null,
    });
  }

  #busy() {
    this.#composer.isBusy = this.#lanes.some((one) => one.isBusy);
    if (this.#composer.isBusy) this.#settings.mark(null);
  }

  #changed(conversation) {
    keep("model", conversation.lanes[0].model);
    this.#adapt();
    if (!this.#list.all.includes(conversation) && !conversation.lanes[0].messages.length) return;
    this.#save(conversation);
  }

  #save(conversation = this.#conversation) {
    touch(conversation);
    this.#list.keep(conversation);
    this.#put(conversation);
  }

  // Browsers have limited storage for images: the oldest are dropped first.
  async #put(conversation) {
    const smaller = dropImages(this.#list.all);
    try {
      for (const one of new Set([conversation, ...smaller])) await this.#store.put(one);
    } catch (error) {
      return this.#list.say(t("not.stored", { title: conversation.title, reason: error.message }), true);
    }
    if (!smaller.length) return;
    if (smaller.includes(this.#conversation)) for (const lane of this.#lanes) lane.render();
    this.#list.say(t("images.dropped", { titles: smaller.map((one) => one.title || t("untitled")).join(", ") }), false);
  }

  #explain(error) {
    this.#settings.mark(error.field ?? null);
    if (!(error instanceof Unusable)) return error.message;
    const said = { name: this.#settings.label(error.field), value: error.value, reason: error.message };
    return t(error.expected === "number" ? "no.number" : "no.json", said);
  }

  #forget(conversation) {
    this.#store.remove(conversation.id);
    if (conversation === this.#conversation) this.#restart();
  }

  #restart() {
    this.#show(start(recall("model", "")));
  }

  // Send the same questions to a second model, beside the first.
  #compare() {
    const [first] = this.#conversation.lanes;
    const other = this.#models.find((one) => one.id !== first.model) ?? this.#models[0];
    this.#conversation.lanes.push({ model: other?.id ?? "", messages: structuredClone(first.messages) });
    this.#show(this.#conversation);
  }

  #close(data) {
    this.#conversation.lanes = this.#conversation.lanes.filter((one) => one !== data);
    this.#changed(this.#conversation);
    this.#show(this.#conversation);
  }
}
