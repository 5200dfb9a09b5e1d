// Where people type, and send or stop.

const MOST = 220; // pixels of height
const find = (id) => document.getElementById(id);

export class Composer {
  #area = find("text");

  // Of `acts`, `send(text)` is called for what was typed, `stop()` to end the answer, and
  // `again()` when somebody presses Up where nothing is typed.
  constructor(acts) {
    const send = () => {
      const text = this.#area.value.trim();
      if (text && !find("send").hidden) acts.send(text);
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
