// Workers and queue of a servable.

import { make } from "../make.js";
import { counted, t } from "../texts.js";

const MOST = 64; // squares

// Return a square for each request: running requests, then waiting ones.
export class Queue {
  element = make("div", "queue");

  show({ running = 0, waiting = 0 }) {
    const shown = [...Array(Math.min(running, MOST)).fill("runs"), ...Array(Math.min(waiting, MOST)).fill("waits")].slice(0, MOST);
    const squares = [...this.element.querySelectorAll("i")];
    shown.forEach((kind, at) => {
      if (!squares[at]) this.element.append((squares[at] = make("i")));
      squares[at].className = kind;
    });
    for (const one of squares.slice(shown.length)) one.remove();
    this.element.dataset.text = t("queue", { running, waiting });
    this.element.setAttribute("role", "img");
    this.element.setAttribute("aria-label", this.element.dataset.text);
  }
}

// Return a table of the workers; the place "" is the server's machine.
export function workerTable(workers) {
  const table = make("table", "workers");
  const head = table.createTHead().insertRow();
  for (const key of ["worker.node", "worker.pid", "worker.device", "worker.state"]) head.append(make("th", "", t(key)));
  const body = table.createTBody();
  for (const { node, pid, device, state } of workers) {
    const row = body.insertRow();
    for (const text of [node || t("worker.here"), pid, device, state]) row.insertCell().textContent = text ?? "–";
    row.className = state === "ready" ? "" : "bad";
  }
  return table;
}

// Return "3 workers (1 here, 2 on blue)".
export function summary({ num_workers: count, workers = [] }) {
  const nodes = workers.filter((one) => one.state === "ready").map((one) => one.node);
  const all = counted("workers", count);
  if (!nodes.some(Boolean)) return all; // all are on the server's machine
  const each = [...new Set(nodes)].map((node) => [nodes.filter((one) => one === node).length, node]);
  const place = ([number, node]) => (node ? t("workers.on", { number, node }) : t("workers.here", { number }));
  return `${all} (${each.map(place).join(", ")})`;
}
