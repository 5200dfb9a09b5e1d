// Recordings of the microphone: a click begins one, the next click ends it.

import { t } from "../texts.js";

const ENDINGS = { "audio/webm": "webm", "audio/mp4": "m4a", "audio/ogg": "ogg" };
const find = (id) => document.getElementById(id);

export class Microphone {
  #recorder = null;
  #took;
  #fail;

  // `took(file)` gets each recording; `fail(text)` shows why there is none.
  constructor(took, fail) {
    this.#took = took;
    this.#fail = fail;
    find("microphone").addEventListener("click", () => (this.#recorder ? this.#recorder.stop() : this.#begin()));
  }

  async #begin() {
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      this.#recorder = new MediaRecorder(stream);
    } catch {
      return this.#fail(t("microphone.failed"));
    }
    const parts = [];
    this.#recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
    this.#recorder.addEventListener("stop", () => this.#end(parts));
    this.#recorder.start();
    this.#show(true);
  }

  #end(parts) {
    const [type] = this.#recorder.mimeType.split(";");
    for (const track of this.#recorder.stream.getTracks()) track.stop();
    this.#recorder = null;
    this.#show(false);
    this.#took(new File(parts, `recording.${ENDINGS[type] ?? "webm"}`, { type }));
  }

  #show(isRecording) {
    const label = t(isRecording ? "microphone.stop" : "microphone");
    Object.assign(find("microphone"), { ariaPressed: String(isRecording), ariaLabel: label, title: label });
  }
}
