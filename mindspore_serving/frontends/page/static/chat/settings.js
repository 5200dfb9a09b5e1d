// Dialog of the chat's settings, which are sent with requests and stored in the browser.

import { keep, recall } from "../kept.js";
import { make } from "../make.js";
import { t } from "../texts.js";
import { FIELDS, NO_NUMBER, NUMBERS, defaultsOf, sourceOf } from "./numbers.js";
import { BUILT_IN, TEXTS, applyBuiltIn, changes, toSettings } from "./presets.js";

const find = (id) => document.getElementById(id);
const field = (name) => find(`set-${name}`);
const groupOf = (name) => field(name).closest("details");
const PRESET_NAMES = { default: "preset.default", exact: "preset.exact", balanced: "preset.balanced", creative: "preset.creative" };
const SOURCES = { model: "source.model", server: "source.server", operator: "source.operator" };
const LABELS = {
  system: "system", stop: "stop.texts", schema: "schema", tools: "tools", logprobs: "probabilities",
  temperature: "temperature", top_p: "top_p", top_k: "top_k", min_p: "min_p",
  repetition_penalty: "repetition_penalty", max_tokens: "max_tokens", seed: "seed",
  thinking_token_budget: "thinking_token_budget",
};

export class Settings {
  values = toSettings(recall("settings", {}));
  #own = recall("presets", {}); // settings by name
  #defaults = {};

  constructor() {
    for (const name of NUMBERS) group(FIELDS[name].group).querySelector(".number-fields").append(numberField(name));
    for (const name of [...TEXTS, ...NUMBERS]) {
      field(name).addEventListener("input", () => this.#change({ ...this.values, [name]: textOf(field(name)) }));
    }
    field("logprobs").addEventListener("change", () => this.#change({ ...this.values, logprobs: field("logprobs").checked }));
    find("preset").addEventListener("change", () => this.#apply(find("preset").value));
    find("preset-save").addEventListener("click", () => this.#save());
    find("preset-delete").addEventListener("click", () => this.#delete());
    find("preset-name").addEventListener("input", () => this.#showButtons());
    find("open-settings").addEventListener("click", () => find("settings").showModal());
    find("settings-close").addEventListener("click", () => find("settings").close());
    rememberGroups();
    this.#fill();
    this.#showPresets("");
  }

  // `entries` are the models that answer, as GET /v1/models has them.
  set models(entries) {
    this.#defaults = defaultsOf(entries);
    for (const name of NUMBERS) field(name).placeholder = placeholder(name, this.#defaults[name]);
    const source = SOURCES[sourceOf(entries)];
    find("sampling-source").textContent = source ? t(source) : "";
    this.#summarize();
  }

  // Mark the invalid field, null for none, and open its group.
  mark(wrong) {
    for (const name of Object.keys(LABELS)) field(name).setAttribute("aria-invalid", name === wrong);
    find("open-settings").classList.toggle("wrong", wrong in LABELS);
    if (wrong in LABELS && groupOf(wrong)) groupOf(wrong).open = true;
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
    const optgroup = (label, options) => {
      const made = make("optgroup");
      made.label = label;
      made.append(...options);
      return made;
    };
    const builtIn = Object.keys(BUILT_IN).map((name) => new Option(t(PRESET_NAMES[name]), `=${name}`));
    const own = Object.keys(this.#own).map((name) => new Option(name, `+${name}`));
    const groups = [optgroup(t("preset.sampling"), builtIn), ...(own.length ? [optgroup(t("preset.own"), own)] : [])];
    find("preset").replaceChildren(new Option(t("preset.choose"), ""), ...groups);
    find("preset").value = chosen;
    this.#showButtons();
  }

  #showButtons() {
    find("preset-save").disabled = !find("preset-name").value.trim();
    find("preset-delete").hidden = !find("preset").value.startsWith("+");
  }

  // Show the changes beside the button, and in each folded group what applies.
  #summarize() {
    const changed = changes(this.values);
    const show = ([name, value]) => (NUMBERS.includes(name) ? `${this.label(name)} ${value}` : this.label(name));
    find("settings-summary").textContent = changed.map(show).join(" · ");
    for (const one of groups()) {
      const inputs = [...one.querySelectorAll("[id^=set-]")].map((input) => input.id.slice("set-".length));
      const numbers = inputs.filter((name) => name in FIELDS).map((name) => [name, this.values[name] || this.#defaults[name]]);
      const others = changed.filter(([name]) => inputs.includes(name) && !(name in FIELDS));
      one.querySelector("summary .hint").textContent = [...numbers.filter(([, value]) => value !== undefined), ...others].map(show).join(" · ");
    }
  }
}

const groups = () => [...document.querySelectorAll("#settings details")];
const group = (name) => groups().find((one) => one.dataset.group === name);

function rememberGroups() {
  const open = recall("groups", []);
  for (const one of groups()) {
    one.open = open.includes(one.dataset.group);
    one.addEventListener("toggle", () => keep("groups", groups().filter((other) => other.open).map((other) => other.dataset.group)));
  }
}

function numberField(name) {
  const { min, max, step } = FIELDS[name];
  const label = make("label", "", t(LABELS[name]));
  const input = make("input");
  input.id = `set-${name}`;
  input.type = "number";
  input.inputMode = step === 1 ? "numeric" : "decimal";
  Object.assign(input, { min: min ?? "", max: max ?? "", step });
  input.autocomplete = "off";
  label.append(input);
  return label;
}

function placeholder(name, value) {
  if (value !== undefined) return t("range.default", { value });
  return t(name === "seed" ? "random" : "default");
}

// A number field hides the text that is no number.
function textOf(input) {
  return input.validity.badInput ? NO_NUMBER : input.value;
}
