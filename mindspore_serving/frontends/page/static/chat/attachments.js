// Images of the next message: chosen, dropped or pasted, and removed.

import { iconButton, make } from "../make.js";
import { t } from "../texts.js";
import { readImage, showImage } from "./images.js";
import { TYPES } from "./kept_images.js";

const find = (id) => document.getElementById(id);

export class Attachments {
  #all = [];
  #hooks;

  // Hooks: `refuse()` returns why images cannot be added now, "" if they can; `fail(text)` shows an
  // error, and "" clears it.
  constructor(hooks) {
    this.#hooks = hooks;
    find("pictures").accept = TYPES.join();
    find("attach").addEventListener("click", () => find("pictures").click());
    find("pictures").addEventListener("change", () => {
      this.#add([...find("pictures").files]);
      find("pictures").value = "";
    });
    find("text").addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    find("room").addEventListener("dragover", (event) => this.#offer(event));
    find("room").addEventListener("dragleave", () => find("ask").classList.remove("dropping"));
    find("room").addEventListener("drop", (event) => this.#take(event, event.dataTransfer));
  }

  get all() {
    return this.#all;
  }

  set all(images) {
    this.#all = images;
    find("attached").replaceChildren(...images.map((one) => this.#item(one)));
    find("attached").hidden = images.length === 0;
  }

  #offer(event) {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault(); // or the browser leaves the page for the file
    find("ask").classList.add("dropping");
  }

  #take(event, given) {
    find("ask").classList.remove("dropping");
    if (!given.files.length) return;
    event.preventDefault();
    this.#add([...given.files]);
  }

  async #add(files) {
    const problems = [];
    const refusal = this.#hooks.refuse();
    if (refusal) return this.#hooks.fail(refusal);
    for (const file of files) {
      try {
        const image = await readImage(file);
        this.all = [...this.#all, image];
      } catch (error) {
        problems.push(error.message);
      }
    }
    this.#hooks.fail(problems.join(" "));
    find("text").focus();
  }

  #item(image) {
    const line = make("li");
    const remove = () => {
      this.all = this.#all.filter((one) => one !== image);
      find("text").focus();
    };
    line.append(showImage(image), iconButton("close", t("image.remove", { name: image.name }), remove));
    return line;
  }
}
