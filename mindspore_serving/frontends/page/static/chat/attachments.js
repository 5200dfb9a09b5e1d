// Images, videos, sounds and files of the next message: chosen, dropped, pasted or taken, and removed.

import { iconButton, make } from "../make.js";
import { t } from "../texts.js";
import { Camera } from "./camera.js";
import { isPdfFile, readDocument } from "./documents.js";
import { showFile } from "./file_view.js";
import { readImage, readMedia, showImage } from "./images.js";
import { PDF_TYPE } from "./kept_images.js";
import { Microphone } from "./microphone.js";

const find = (id) => document.getElementById(id);

export class Attachments {
  #all = [];
  #hooks;

  // Hooks: `refuse(kind)` returns why files of a kind, "image" or "audio", cannot be added now, "" if
  // they can; `fail(text)` shows an error, and "" clears it.
  constructor(hooks) {
    this.#hooks = hooks;
    find("attach").addEventListener("click", () => find("pictures").click());
    find("pictures").addEventListener("change", () => {
      this.#add([...find("pictures").files]);
      find("pictures").value = "";
    });
    new Camera((file) => this.#add([file]));
    new Microphone(
      (file) => this.#add([file]),
      (text) => this.#hooks.fail(text),
    );
    find("text").addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    find("room").addEventListener("dragover", (event) => this.#offer(event));
    find("room").addEventListener("dragleave", () => find("ask").classList.remove("dropping"));
    find("room").addEventListener("drop", (event) => this.#take(event, event.dataTransfer));
  }

  get all() {
    return this.#all;
  }

  set all(attached) {
    this.#all = attached;
    find("attached").replaceChildren(...attached.map((one) => this.#item(one)));
    find("attached").hidden = attached.length === 0;
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
    find("attach").setAttribute("aria-busy", "true");
    for (const file of files) {
      try {
        const read = await this.#read(file);
        this.all = [...this.#all, read];
      } catch (error) {
        problems.push(error.message);
      }
    }
    find("attach").removeAttribute("aria-busy");
    this.#hooks.fail([...new Set(problems)].join(" "));
    find("text").focus();
  }

  // A PDF is seen by a model that takes images, and read here for others.
  async #read(file) {
    const isSound = file.type.startsWith("audio/");
    const refusal = this.#hooks.refuse(isSound ? "audio" : "image");
    if (isSound && refusal) throw new Error(refusal);
    if (isSound) return readMedia(file, file.type);
    const isVideo = file.type.startsWith("video/");
    if (!refusal && !isVideo && !isImage(file) && (await isPdfFile(file))) return readMedia(file, PDF_TYPE);
    if (!isVideo && !isImage(file)) return readDocument(file);
    if (refusal) throw new Error(refusal);
    return isVideo ? readMedia(file, file.type) : readImage(file);
  }

  #item(one) {
    const line = make("li");
    const remove = () => {
      this.all = this.#all.filter((other) => other !== one);
      find("text").focus();
    };
    line.append(one.url ? showImage(one) : showFile(one), iconButton("close", t("image.remove", { name: one.name }), remove));
    return line;
  }
}

// Drawings in XML are texts for a model.
function isImage({ type }) {
  return type.startsWith("image/") && type !== "image/svg+xml";
}
