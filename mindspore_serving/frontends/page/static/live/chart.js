// Line chart of a number over time, with axes and the value under the pointer.  Knows no server.

import { make, svg } from "../make.js";
import { t } from "../texts.js";
import { Points } from "./points.js";

const WIDTH = 240;
const HEIGHT = 56;

export class Chart {
  #points = new Points();
  #number = make("strong");
  #past = make("span", "past");
  #top = make("span", "axis top");
  #left = make("span", "axis");
  #line = svg("path", { class: "line" });
  #area = svg("path", { class: "area" });
  #cursor = svg("path", { class: "cursor" });
  #picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  #title;
  #shown;
  #most;
  #now = 0;
  #span = 60000; // milliseconds that are shown
  #pointed = null; // where the pointer is, from 0 to 1

  // `id` names it, `title` is its label and `shown` formats a value.  `most` is the top of
  // the chart, or 0: the highest value shown.
  constructor(id, title, shown, most = 0) {
    this.#title = title;
    this.#shown = shown;
    this.#most = most;
    this.element = make("div", "chart");
    this.element.dataset.title = id;
    const head = make("div", "chart-head");
    const feet = make("div", "chart-feet");
    head.append(this.#number, this.#past);
    feet.append(this.#left, make("span", "axis", t("now")));
    this.#picture.append(this.#area, this.#line, this.#cursor);
    this.element.append(make("span", "chart-title", title), head, this.#top, this.#picture, feet);
    this.#picture.addEventListener("pointermove", (event) => this.#point(event));
    this.#picture.addEventListener("pointerleave", () => this.#point(null));
  }

  // Return the value at a time in milliseconds; null if there is none.
  push(value, time) {
    this.#points.push(value, time);
    this.#now = time;
  }

  // Draw the last `span` milliseconds, a period called `name`.
  draw(span, name) {
    this.#span = span;
    this.#left.textContent = name;
    const runs = this.#points.runs(this.#now - span);
    const values = runs.flat().map((one) => one.value);
    const peak = values.length ? values.reduce((most, one) => Math.max(most, one)) : null;
    const top = this.#most || peak || 1;
    this.#top.textContent = peak === null ? "" : this.#shown(top);
    this.#line.setAttribute("d", runs.map((run) => `M${this.#path(run, top)}`).join(""));
    this.#area.setAttribute("d", runs.map((run) => this.#filled(run, top)).join(""));
    this.#tell(peak);
  }

  #tell(peak) {
    const last = this.#points.since(this.#now).at(-1)?.value ?? null;
    const now = last === null ? "–" : this.#shown(last);
    const spoken = peak === null ? t("chart.empty") : t("chart.spoken", { now, highest: this.#shown(peak) });
    this.#picture.setAttribute("aria-label", `${this.#title}: ${spoken}`);
    const pointed = this.#pointed === null ? null : this.#nearest();
    this.#number.textContent = pointed ? this.#shown(pointed.value) : now;
    this.#past.textContent = pointed ? t("ago", { time: clock(this.#now - pointed.time) }) : "";
    this.#cursor.setAttribute("d", pointed ? `M${this.#x(pointed)} 0V${HEIGHT}` : "");
  }

  #nearest() {
    const since = this.#now - this.#span;
    return this.#points.nearest(since + this.#pointed * this.#span, since);
  }

  #point(event) {
    const box = this.#picture.getBoundingClientRect();
    this.#pointed = event && box.width ? (event.clientX - box.left) / box.width : null;
    this.draw(this.#span, this.#left.textContent);
  }

  #x({ time }) {
    return (WIDTH * (1 - (this.#now - time) / this.#span)).toFixed(1);
  }

  #path(run, top) {
    const y = (value) => HEIGHT - 1.5 - (Math.min(value, top) / top) * (HEIGHT - 4);
    return run.map((one) => `${this.#x(one)} ${y(one.value).toFixed(1)}`).join(" L");
  }

  #filled(run, top) {
    return `M${this.#x(run[0])} ${HEIGHT} L${this.#path(run, top)} L${this.#x(run.at(-1))} ${HEIGHT}Z`;
  }
}

// Format milliseconds as "32 s" or "12:05".
function clock(milliseconds) {
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 60) return `${seconds} s`;
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}
