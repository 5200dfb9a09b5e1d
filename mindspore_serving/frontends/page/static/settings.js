// What the chat asks the model with.  Kept in the browser; an empty field is the server's default.

const KEPT = "mindspore-serving-settings";
const FIELDS = { system: "system", temperature: "temperature", "top-p": "top_p", "max-tokens": "max_tokens" };
const find = (id) => document.getElementById(id);

export class Settings {
  model = "";

  constructor() {
    const kept = recall();
    this.model = kept.model ?? "";
    for (const id of Object.keys(FIELDS)) {
      find(id).value = kept[id] ?? "";
      find(id).addEventListener("input", () => this.#changed());
    }
    find("model").addEventListener("change", () => this.#changed());
    this.#summarize();
  }

  // The system prompt, and the sampling options as the request names them.
  read() {
    const sampling = {};
    for (const [id, name] of Object.entries(FIELDS)) {
      const number = find(id).valueAsNumber;
      if (Number.isFinite(number) && find(id).validity.valid) sampling[name] = number;
    }
    return { system: find("system").value.trim(), sampling };
  }

  #changed() {
    const kept = { model: find("model").value };
    for (const id of Object.keys(FIELDS)) kept[id] = find(id).value;
    try {
      localStorage.setItem(KEPT, JSON.stringify(kept));
    } catch {
      // a private window may refuse; then they last as long as the page
    }
    this.#summarize();
  }

  #summarize() {
    const { system, sampling } = this.read();
    const parts = Object.entries(sampling).map(([name, value]) => `${name.replace("_", " ")} ${value}`);
    if (system) parts.unshift("system prompt");
    find("settings-summary").textContent = parts.join(", ");
  }
}

function recall() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}
