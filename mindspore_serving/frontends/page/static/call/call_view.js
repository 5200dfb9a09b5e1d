// View for calling a method: its inputs, its answer, and the same call as a program.

import { send } from "../api.js";
import { copyButton } from "../copy.js";
import { button, make } from "../make.js";
import { t } from "../texts.js";
import { fault, showAnswer } from "./answer.js";
import { instance, programs } from "./code.js";
import { inputForm } from "./form.js";

const LANGUAGES = { curl: "curl", python: "Python", javascript: "JavaScript" };
const find = (id) => document.getElementById(id);

export class CallView {
  #methods = new Map(); // what each choice of the list stands for
  #form = null;
  #language = "curl";

  constructor() {
    find("method").addEventListener("change", () => this.#open());
    find("call-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    for (const [id, name] of Object.entries(LANGUAGES)) {
      const choice = button(name, () => this.#speak(id));
      choice.dataset.language = id;
      find("languages").append(choice);
    }
    find("languages").append(copyButton(() => find("program").textContent));
  }

  // Offer the methods of `servables`, classic servables first.
  show(servables) {
    const sorted = [...servables].sort((one, other) => Boolean(one.model) - Boolean(other.model));
    const before = find("method").value;
    this.#methods.clear();
    find("method").replaceChildren(...sorted.map((row) => this.#group(row)));
    if (this.#methods.has(before)) find("method").value = before;
    if (!this.#methods.has(before) || !this.#form) this.#open();
  }

  #group(row) {
    const group = make("optgroup");
    group.label = row.name;
    for (const [name, method] of Object.entries(row.methods ?? {})) {
      const path = `model/${encodeURIComponent(row.name)}:${encodeURIComponent(name)}`;
      this.#methods.set(path, method);
      group.append(new Option(`${row.name}: ${name}(${method.inputs.join(", ")}) → ${method.outputs.join(", ")}`, path));
    }
    return group;
  }

  #open() {
    const method = this.#methods.get(find("method").value);
    find("call-form").hidden = !method;
    find("reply").replaceChildren();
    if (!method) return;
    this.#form = inputForm(method.input_specs, () => this.#showProgram());
    find("inputs").replaceChildren(this.#form.element);
    this.#speak(this.#language);
  }

  #speak(language) {
    this.#language = language;
    for (const one of find("languages").querySelectorAll("[data-language]")) {
      one.setAttribute("aria-pressed", one.dataset.language === language);
    }
    this.#showProgram();
  }

  #showProgram() {
    const url = new URL(find("method").value, location.href.split("#")[0]).href;
    try {
      find("program").textContent = programs(url, this.#form.values())[this.#language];
    } catch (error) {
      find("program").textContent = `# ${error.message}`;
    }
  }

  async #send() {
    find("reply").replaceChildren(make("p", "hint", "…"));
    try {
      const body = JSON.stringify({ instances: [instance(this.#form.values())] });
      const began = performance.now();
      const response = await send("POST", find("method").value, body);
      const text = await response.text();
      find("reply").replaceChildren(...showAnswer(response.status, text, performance.now() - began));
    } catch (error) {
      const isLost = error instanceof TypeError; // as fetch says it
      find("reply").replaceChildren(fault(isLost ? t("unreachable") : error.message));
    }
  }
}
