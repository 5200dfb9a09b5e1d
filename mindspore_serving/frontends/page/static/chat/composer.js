// Input of messages, with or without images and files; sends and stops.

import { Attachments } from "./attachments.js";
import { kindOf } from "./kept_images.js";

const MOST = 220; // pixels of height
const find = (id) => document.getElementById(id);

export class Composer {
  #area = find("text");
  #attachments;

  // Acts: `send(text, attached)` is called with the input, `stop()` ends the answer, and `again()` is
  // called when the user presses Up in an empty input; `refuse()` and `fail(text)` are as for
  // Attachments.
  constructor(acts) {
    this.#attachments = new Attachments(acts);
    const send = () => {
      const text = this.#area.value.trim();
      const attached = this.attached;
      if (find("send").hidden || !(text || attached.length)) return;
      const refusal = attached.filter((one) => one.url).map((one) => acts.refuse(kindOf(one.url))).find(Boolean);
      if (refusal) return acts.fail(refusal);
      this.text = "";
      this.attached = [];
      acts.send(text, attached);
    };
    find("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      send();
    });
    find("stop").addEventListener("click", acts.stop);
    this.#area.addEventListener("input", () => this.#fit());
    this.#area.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "ArrowUp" && !this.#area.value) acts.again();
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      send();
    });
  }

  get text() {
    return this.#area.value;
  }

  set text(value) {
    this.#area.value = value;
    this.#fit();
  }

  get attached() {
    return this.#attachments.all;
  }

  set attached(value) {
    this.#attachments.all = value;
  }

  set isBusy(value) {
    find("send").hidden = value;
    find("stop").hidden = !value;
  }

  focus() {
    this.#area.focus();
  }

  #fit() {
    this.#area.style.height = "auto";
    this.#area.style.height = `${Math.min(this.#area.scrollHeight, MOST)}px`;
  }
}
