// A message on the page, with its actions.

import { copyButton } from "../copy.js";
import { button, iconButton, make } from "../make.js";
import { t } from "../texts.js";
import { describe } from "../timing.js";
import { showCall } from "./calls.js";
import { showFile } from "./file_view.js";
import { showImage } from "./images.js";
import { MarkdownView } from "./markdown.js";
import { ProbabilityView } from "./probabilities.js";

// Actions in order: an icon and the key of the name.
const ACTIONS = {
  redo: ["redo", "message.redo"],
  resume: ["go", "message.continue"],
  edit: ["edit", "message.edit"],
  remove: ["trash", "message.delete"],
};

export class MessageView {
  element;
  #message;
  #body = make("div", "body");
  #said; // a view of the content
  #thought = null;
  #frame = 0;

  // `acts` are functions by the names of ACTIONS; a message has the actions that are given, and
  // `save(text)` gets the text after an edit.  While an answer `isComing`, its end is not marked.
  constructor(message, acts, isComing = false) {
    this.#message = message;
    this.element = make("div", `message ${message.role}${isComing ? " coming" : ""}`);
    const who = { system: t("system"), user: t("you"), tool: message.name ?? "" }[message.role] ?? message.model;
    this.element.append(make("span", "who", who), this.#body);
    this.#said = viewOf(message);
    this.#body.append(...(message.images ?? []).map(showImage), ...(message.files ?? []).map(showFile), this.#said.node);
    this.show();
    if (!isComing) this.#body.append(...notes(message, acts.resume));
    if (Object.keys(acts).length) this.element.append(this.#bar(acts));
  }

  // Render the text received so far in the next frame.
  showSoon(after) {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.show(false);
      after();
    });
  }

  show(isLast = true) {
    const { content, tokens, reasoning } = this.#message;
    if (this.#said instanceof MarkdownView && tokens) this.#change(new ProbabilityView());
    this.#said.show(this.#said instanceof ProbabilityView ? tokens : content, isLast);
    if (reasoning) this.#think(reasoning);
  }

  // Let the user edit the text; `save` gets it.
  edit(save, label) {
    const area = make("textarea", "edit");
    area.value = this.#message.content;
    area.setAttribute("aria-label", t("message.edit"));
    const done = () => save(area.value);
    const row = make("div", "row");
    row.append(button(label, done, "main"), button(t("cancel"), () => save(null)));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") save(null);
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done();
    });
    this.element.classList.add("editing");
    this.element.replaceChildren(area, row);
    area.style.height = `${area.scrollHeight + 2}px`;
    area.focus();
  }

  #change(view) {
    this.#said.node.replaceWith(view.node);
    this.#said = view;
  }

  #think(text) {
    if (!this.#thought) {
      const box = make("details", "thought");
      this.#thought = make("div");
      box.append(make("summary", "", t("reasoning")), this.#thought);
      this.#body.prepend(box);
    }
    this.#thought.textContent = text;
  }

  #bar(acts) {
    const bar = make("div", "actions");
    bar.append(copyButton(() => this.#message.content, t("message.copy")));
    for (const [name, [picture, key]] of Object.entries(ACTIONS)) {
      if (acts[name]) bar.append(iconButton(picture, t(key), acts[name], name));
    }
    bar.append(make("span", "numbers", describe(this.#message)));
    return bar;
  }
}

// Answers are Markdown, or coloured tokens; other texts are shown as typed.
function viewOf({ role, tokens }) {
  if (role !== "assistant") return new PlainView();
  return tokens ? new ProbabilityView() : new MarkdownView();
}

class PlainView {
  node = make("div", "said plain");

  show(text) {
    this.node.textContent = text;
  }
}

const MARKS = { stopped: "mark.stopped", length: "mark.length", context: "mark.context" };

// `resume`, if given, requests the rest of an answer that was cut off.
function notes({ calls, mark, error, role }, resume) {
  if (role !== "assistant") return [];
  const found = (calls ?? []).map(showCall);
  if (error) found.push(make("p", "error", error));
  else if (MARKS[mark]) found.push(make("p", "note", t(MARKS[mark])));
  if (!error && mark === "length" && resume) found.at(-1).append(button(t("message.continue"), resume, "continue"));
  return found;
}
