// Dialog of the chat's settings, which are sent with requests and stored in the browser.

import { keep, recall } from "../kept.js";
import { make } from "../make.js";
import { t } from "../texts.js";
import { BUILT_IN, TEXTS, applyBuiltIn, changes, toSettings } from "./presets.js";
import { NUMBERS } from "./request.js";

const find = (id) => document.getElementById(id);
const field = (name) => find(`set-${name}`);
const PRESET_NAMES = { default: "preset.default", exact: "preset.exact", balanced: "preset.balanced", creative: "preset.creative" };
const LABELS = {
  system: "system", stop: "stop.texts", schema: "schema", tools: "tools", logprobs: "probabilities",
  temperature: "temperature", top_p: "top_p", top_k: "top_k", min_p: "min_p",
  repetition_penalty: "repetition_penalty", max_tokens: "max_tokens", seed: "seed",
};

export class Settings {
  values = toSettings(recall("settings", {}));
  #own = recall("presets", {}); // settings by name

  constructor() {
    find("numbers-fields").append(...NUMBERS.map(numberField));
    for (const name of [...TEXTS, ...NUMBERS]) {
      field(name).addEventListener("input", () => this.#change({ ...this.values, [name]: field(name).value }));
    }
    field("logprobs").addEventListener("change", () => this.#change({ ...this.values, logprobs: field("logprobs").checked }));
    find("preset").addEventListener("change", () => this.#apply(find("preset").value));
    find("preset-save").addEventListener("click", () => this.#save());
    find("preset-delete").addEventListener("click", () => this.#delete());
    find("preset-name").addEventListener("input", () => this.#showButtons());
    find("open-settings").addEventListener("click", () => find("settings").showModal());
    find("settings-close").addEventListener("click", () => find("settings").close());
    this.#fill();
    this.#showPresets("");
  }

  // Mark the invalid field, null for none.
  mark(wrong) {
    for (const name of Object.keys(LABELS)) field(name).setAttribute("aria-invalid", name === wrong);
    find("open-settings").classList.toggle("wrong", wrong in LABELS);
  }

  // Return the name of a field.
  label(name) {
    return t(LABELS[name]);
  }

  #change(values) {
    this.values = values;
    keep("settings", values);
    this.mark(null);
    this.#summarize();
    this.#showPresets("");
  }

  #fill() {
    for (const name of [...TEXTS, ...NUMBERS]) field(name).value = this.values[name];
    field("logprobs").checked = this.values.logprobs;
    this.#summarize();
  }

  #apply(choice) {
    if (!choice) return;
    const [kind, name] = [choice.slice(0, 1), choice.slice(1)];
    this.#change(kind === "=" ? applyBuiltIn(this.values, name) : toSettings(this.#own[name]));
    this.#fill();
    this.#showPresets(choice);
  }

  #save() {
    const name = find("preset-name").value.trim();
    this.#own = { ...this.#own, [name]: this.values };
    keep("presets", this.#own);
    find("preset-name").value = "";
    this.#showPresets(`+${name}`);
  }

  #delete() {
    const { [find("preset").value.slice(1)]: _, ...others } = this.#own;
    this.#own = others;
    keep("presets", others);
    this.#showPresets("");
  }

  #showPresets(chosen) {
    const group = (label, options) => {
      const made = make("optgroup");
      made.label = label;
      made.append(...options);
      return made;
    };
    const builtIn = Object.keys(BUILT_IN).map((name) => new Option(t(PRESET_NAMES[name]), `=${name}`));
    const own = Object.keys(this.#own).map((name) => new Option(name, `+${name}`));
    const groups = [group(t("preset.sampling"), builtIn), ...(own.length ? [group(t("preset.own"), own)] : [])];
    find("preset").replaceChildren(new Option(t("preset.choose"), ""), ...groups);
    find("preset").value = chosen;
    this.#showButtons();
  }

  #showButtons() {
    find("preset-save").disabled = !find("preset-name").value.trim();
    find("preset-delete").hidden = !find("preset").value.startsWith("+");
  }

  #summarize() {
    const show = ([name, value]) => (NUMBERS.includes(name) ? `${this.label(name)} ${value}` : this.label(name));
    find("settings-summary").textContent = changes(this.values).map(show).join(" · ");
  }
}

function numberField(name) {
  const label = make("label", "", t(LABELS[name]));
  const input = make("input");
  input.id = `set-${name}`;
  input.inputMode = "decimal";
  input.placeholder = t("default");
  input.autocomplete = "off";
  label.append(input);
  return label;
}
