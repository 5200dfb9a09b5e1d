// Input of messages, with or without images; sends and stops.

import { Attachments } from "./attachments.js";

const MOST = 220; // pixels of height
const find = (id) => document.getElementById(id);

export class Composer {
  #area = find("text");
  #attachments;

  // Acts: `send(text, images)` is called with the input, `stop()` ends the answer, and `again()` is
  // called when the user presses Up in an empty input; `refuse()` and `fail(text)` are as for
  // Attachments.
  constructor(acts) {
    this.#attachments = new Attachments(acts);
    const send = () => {
      const text = this.#area.value.trim();
      if (find("send").hidden || !(text || this.images.length)) return;
      const refusal = this.images.length ? acts.refuse() : "";
      if (refusal) acts.fail(refusal);
      else acts.send(text, this.images);
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

  get images() {
    return this.#attachments.all;
  }

  set images(value) {
    this.#attachments.all = value;
  }

  // True if images can be sent.
  set takesImages(value) {
    find("attach").hidden = !value;
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
