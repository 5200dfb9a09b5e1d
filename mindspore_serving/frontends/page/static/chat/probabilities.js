// Tokens of an answer, coloured by probability; arrow keys move between them.

import { make } from "../make.js";
import { t } from "../texts.js";

const STEPS = [0.9, 0.7, 0.5, 0.3, 0.1]; // at least so likely: class p0, p1, ... and p5 below

export function shade(logprob) {
  const found = STEPS.findIndex((least) => Math.exp(logprob) >= least);
  return `p${found < 0 ? STEPS.length : found}`;
}

export function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return `${value < 10 ? value.toFixed(1) : value.toFixed(0)} %`;
}

export class ProbabilityView {
  node = make("div");
  #text = make("div", "said tokens");
  #said = make("p", "hint");
  #tokens = [];
  #at = -1;

  constructor() {
    this.#text.tabIndex = 0;
    this.#text.setAttribute("role", "group");
    this.#text.setAttribute("aria-label", t("probabilities.hint"));
    this.#said.setAttribute("role", "status");
    this.#said.textContent = t("probabilities.hint");
    this.#text.addEventListener("pointerover", ({ target }) => this.#point([...this.#text.children].indexOf(target)));
    this.#text.addEventListener("keydown", (event) => this.#step(event));
    this.node.append(this.#text, this.#said);
  }

  show(tokens) {
    this.#tokens = tokens;
    for (const { text, logprob } of tokens.slice(this.#text.children.length)) {
      this.#text.append(make("span", shade(logprob), text));
    }
  }

  #step(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.#point(Math.max(this.#at + by, 0));
  }

  #point(at) {
    const token = this.#tokens[at];
    if (!token) return;
    this.#text.children[this.#at]?.classList.remove("pointed");
    this.#text.children[at].classList.add("pointed");
    this.#at = at;
    const all = token.others.length ? token.others : [[token.text, token.logprob]];
    this.#said.textContent = all.map(([text, logprob]) => `${JSON.stringify(text)} ${percent(logprob)}`).join("  ·  ");
  }
}
