// Operator's view: servables in the repository, machines, and the log level.

import { Refused, call } from "../api.js";
import { iconButton, make } from "../make.js";
import { number, t } from "../texts.js";
import { ModelPanel } from "./model_panel.js";
import { LEVELS, ageOf, machines, merged, toLevel, toSettings } from "./states.js";

const PERIOD = 5000; // milliseconds between two looks at what could be served
const BUSY_PERIOD = 900; // while something is loaded or unloaded
const NAMES = { debug: "level.debug", info: "level.info", warning: "level.warning", error: "level.error", none: "level.none" };
const find = (id) => document.getElementById(id);

export class OperateView {
  #panels = new Map();
  #asked = -Infinity; // when the server was asked last
  #shown = "";

  constructor() {
    find("log-level").append(...LEVELS.map((one) => new Option(t(NAMES[one]), one)));
    find("log-level").addEventListener("change", () => this.#setLevel());
  }

  // `servables` are the rows of GET servables, polled once a second.
  show(servables) {
    if (document.body.dataset.view !== "operate") return;
    this.#showMachines(servables);
    const isBusy = [...this.#panels.values()].some((one) => one.isBusy);
    if (performance.now() - this.#asked >= (isBusy ? BUSY_PERIOD : PERIOD)) this.#look();
  }

  async #look() {
    this.#asked = performance.now();
    await this.#try(async () => {
      const [index, settings, { servables }, { batches }] = await Promise.all([
        json("v2/repository/index", {}),
        json("v2/logging"),
        json("servables"),
        json("batches"),
      ]);
      if (document.activeElement !== find("log-level")) find("log-level").value = toLevel(settings);
      this.#showModels(merged(index, servables));
      this.#showMachines(servables);
      showBatches(batches);
    });
  }

  #showModels(models) {
    const names = models.map((one) => one.name);
    for (const [name, panel] of this.#panels) {
      if (names.includes(name)) continue;
      panel.element.remove();
      this.#panels.delete(name);
    }
    for (const model of models) this.#panel(model.name).show(model);
    if (this.#shown === names.join("\n")) return; // what is moved loses the focus
    this.#shown = names.join("\n");
    find("models").append(...names.map((name) => this.#panels.get(name).element));
  }

  #panel(name) {
    if (!this.#panels.has(name)) this.#panels.set(name, new ModelPanel(name, () => this.#look()));
    return this.#panels.get(name);
  }

  #showMachines(servables) {
    const toRow = ({ node, ready, others, servables: names }) => {
      const row = make("tr");
      for (const text of [node || t("worker.here"), number(ready), number(others), names.join(", ") || "–"]) row.append(make("td", "", text));
      if (others) row.className = "bad";
      return row;
    };
    find("machines").replaceChildren(...machines(servables).map(toRow));
  }

  async #setLevel() {
    const level = find("log-level").value;
    await this.#try(async () => {
      await json("v2/logging", toSettings(level));
      find("operate-said").textContent = t("level.set", { level: t(NAMES[level]) });
    });
  }

  async #try(act) {
    try {
      await act();
    } catch (error) {
      this.#fail(error instanceof Refused ? error.message : t("unreachable"));
    }
  }

  // The error stays until the user closes it.
  #fail(text) {
    const close = iconButton("close", t("error.close"), () => find("operate-error").replaceChildren());
    if (find("operate-error").textContent !== text) find("operate-error").replaceChildren(make("p", "", text), close);
  }
}

// Requests of a batch that is still read have no number.
function showBatches(batches) {
  const toRow = ({ path, status, total, done, failed, age }) => {
    const row = make("tr");
    const isRead = status === "validating";
    const texts = [path, isRead ? t("batch.read") : t("batch.share", { done: number(done), total: number(total) }), number(failed)];
    for (const text of [...texts, t(...ageOf(age))]) row.append(make("td", "", text));
    if (!isRead && total) row.cells[1].append(progressOf(done / total, path));
    if (failed) row.className = "bad";
    return row;
  };
  find("batches").hidden = !batches.length;
  find("batches").querySelector("tbody").replaceChildren(...batches.map(toRow));
}

function progressOf(share, path) {
  const made = make("progress");
  made.value = share;
  made.setAttribute("aria-label", t("batch.of", { path }));
  return made;
}

async function json(path, body) {
  return (await call(path, { body })).json();
}
