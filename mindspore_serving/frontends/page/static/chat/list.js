// List of conversations: search, open, rename, delete, export and import.

import { download } from "../download.js";
import { button, iconButton, make } from "../make.js";
import { counted, t } from "../texts.js";
import { read, write } from "./archive.js";
import { matches, rename } from "./conversation.js";

const DAY = 86400000; // milliseconds
const find = (id) => document.getElementById(id);

export class ConversationList {
  all;
  #hooks;
  #open = null;

  // `all` are conversations, newest first.  Hooks: `open(conversation)` shows one, `save` and `forget`
  // get one that was changed or deleted, and `start()` begins one.
  constructor(all, hooks) {
    this.all = all;
    this.#hooks = hooks;
    find("new").addEventListener("click", () => hooks.start());
    find("search").addEventListener("input", () => this.show());
    find("export").addEventListener("click", () => download(write(this.all), "conversations.json"));
    find("import").addEventListener("click", () => find("file").click());
    find("file").addEventListener("change", () => this.#import());
    this.show();
  }

  // Move a conversation that has changed to its position.
  keep(conversation) {
    this.all = [conversation, ...this.all.filter((one) => one !== conversation)];
    this.all.sort((one, other) => other.changed - one.changed);
    this.show();
  }

  // `open` is the visible conversation.
  show(open = this.#open) {
    this.#open = open;
    const found = this.all.filter((one) => matches(one, find("search").value));
    const items = [];
    let last = "";
    for (const one of found) {
      const group = when(one.changed);
      if (group !== last) items.push(make("li", "group", group));
      last = group;
      items.push(this.#item(one));
    }
    find("list").replaceChildren(...items);
    find("list-empty").hidden = found.length > 0;
    find("list-empty").textContent = this.all.length ? t("search.none") : t("list.none");
  }

  #item(one) {
    const line = make("li", one === this.#open ? "chosen" : "");
    const open = button(one.title || t("untitled"), () => this.#hooks.open(one), "title");
    if (one === this.#open) open.setAttribute("aria-current", "true");
    const named = { title: one.title };
    line.append(
      open,
      iconButton("edit", t("rename", named), () => this.#rename(line, one)),
      iconButton("trash", t("delete", named), () => this.#ask(line, one)),
    );
    return line;
  }

  #rename(line, one) {
    const input = make("input");
    input.value = one.title;
    input.setAttribute("aria-label", t("rename", { title: one.title }));
    const done = (isKept) => {
      input.onblur = null;
      if (isKept) {
        rename(one, input.value);
        this.#hooks.save(one);
      }
      this.show();
    };
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") done(true);
      if (event.key === "Escape") done(false);
    });
    input.onblur = () => done(true);
    line.replaceChildren(input);
    input.select();
  }

  #ask(line, one) {
    const sure = button(t("delete.sure"), () => {
      this.all = this.all.filter((other) => other !== one);
      this.#hooks.forget(one);
      this.show();
    }, "danger");
    line.replaceChildren(sure, button(t("cancel"), () => this.show()));
    sure.focus();
  }

  async #import() {
    const [file] = find("file").files;
    find("file").value = "";
    if (!file) return;
    try {
      const found = read(await file.text());
      const ids = new Set(found.map((one) => one.id));
      this.all = [...found, ...this.all.filter((one) => !ids.has(one.id))];
      this.all.sort((one, other) => other.changed - one.changed);
      for (const one of found) this.#hooks.save(one);
      this.say(counted("imported", found.length), false);
    } catch (error) {
      this.say(t("import.failed", { file: file.name, reason: error.message }), true);
    }
    this.show();
  }

  // Show a message about the storage.
  say(text, isBad) {
    find("list-said").textContent = text;
    find("list-said").classList.toggle("bad", isBad);
  }
}

function when(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return t("today");
  return time >= today - 7 * DAY ? t("week") : t("older");
}
