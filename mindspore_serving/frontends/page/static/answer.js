// One answer while it comes: its text on the page, and its times.

import { Refused, call, events, message } from "./api.js";
import { describe } from "./timing.js";

const LOST = "The connection was lost before the answer's end.";

export class Answer {
  text = "";
  numbers = "";
  #said;
  #log;
  #words = new Unrolled();
  #thought = null;
  #frame = 0;
  #times = { sent: performance.now(), first: 0, last: 0, pieces: 0, usage: null };
  #isFinished = false;

  // Shown in `said`, which is in the scrolling `log`.
  constructor(said, log) {
    this.#said = said;
    this.#log = log;
    said.append(this.#words.node);
    said.classList.add("coming");
  }

  // Ask, and show the answer until its end.  Throws what `fail` explains.
  async read(request, signal) {
    const response = await call("v1/chat/completions", { body: request, signal });
    for await (const event of events(response)) {
      if (event.error) throw new Refused(200, message(event));
      if (event.usage) this.#times.usage = event.usage;
      const choice = event.choices?.[0];
      if (choice) this.#add(choice);
    }
    if (!this.#isFinished) throw new Error(LOST);
    this.#finish();
  }

  fail(error) {
    const isStopped = error.name === "AbortError";
    const isLost = error instanceof TypeError; // as fetch says it
    let text = isStopped ? "stopped" : error.message;
    if (isLost) text = this.#times.first ? LOST : "The server cannot be reached.";
    this.#note(text, isStopped ? "note" : "error");
    this.#finish();
  }

  #add({ delta, finish_reason: reason }) {
    const thought = delta?.reasoning_content ?? delta?.reasoning;
    if (thought) this.#think(thought);
    if (delta?.content) {
      this.text += delta.content;
      this.#words.add(delta.content);
    }
    if (thought || delta?.content) this.#count();
    if (reason) this.#isFinished = true;
    if (reason === "length") this.#note("cut off: no more tokens allowed", "note");
  }

  #think(thought) {
    if (this.#thought === null) {
      const box = document.createElement("details");
      const title = document.createElement("summary");
      const body = document.createElement("div");
      this.#thought = new Unrolled();
      body.append(this.#thought.node);
      title.append("Reasoning");
      box.append(title, body);
      this.#said.before(box);
    }
    this.#thought.add(thought);
  }

  #count() {
    const now = performance.now();
    this.#times.first ||= now;
    this.#times.last = now;
    this.#times.pieces += 1;
    this.#frame ||= requestAnimationFrame(() => this.#paint());
  }

  // A fast model says more words than a screen has frames: laying each out would stop everything.
  #paint() {
    this.#frame = 0;
    const isAtEnd = this.#log.scrollHeight - this.#log.scrollTop - this.#log.clientHeight < 40;
    this.#words.show();
    this.#thought?.show();
    if (isAtEnd) this.#log.scrollTop = this.#log.scrollHeight;
  }

  #note(text, kind) {
    const note = document.createElement("p");
    note.className = kind;
    if (kind === "error") note.setAttribute("role", "alert");
    note.append(text);
    this.#said.parentElement.append(note);
  }

  #finish() {
    cancelAnimationFrame(this.#frame);
    this.#paint();
    this.#said.classList.remove("coming");
    this.numbers = describe(this.#times);
  }
}

// A text node, and what is to be added to it.
class Unrolled {
  node = document.createTextNode("");
  #more = "";

  add(text) {
    this.#more += text;
  }

  show() {
    if (this.#more) this.node.appendData(this.#more);
    this.#more = "";
  }
}
