// A number with its last minute as a line.  Knows no server.

const SVG = "http://www.w3.org/2000/svg";
const POINTS = 60;
const WIDTH = 120;
const HEIGHT = 28;

export class Chart {
  #values = [];
  #number = document.createElement("strong");
  #line = document.createElementNS(SVG, "path");
  #area = document.createElementNS(SVG, "path");
  #picture = document.createElementNS(SVG, "svg");
  #title;
  #shown;
  #most;

  // `shown` makes text of a value.  `most` is the top of the chart, or 0: the highest value seen.
  constructor(title, shown, most = 0) {
    this.#title = title;
    this.#shown = shown;
    this.#most = most;
    const name = document.createElement("span");
    name.append(title);
    this.#line.setAttribute("class", "line");
    this.#area.setAttribute("class", "area");
    this.#picture.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.#picture.setAttribute("preserveAspectRatio", "none");
    this.#picture.setAttribute("role", "img");
    this.#picture.append(this.#area, this.#line);
    this.element = document.createElement("div");
    this.element.className = "chart";
    this.element.dataset.title = title;
    this.element.append(name, this.#number, this.#picture);
    this.push(null);
  }

  // The next second's value; null if there is none.
  push(value) {
    this.#values.push(value);
    if (this.#values.length > POINTS) this.#values.shift();
    this.#number.textContent = value === null ? "–" : this.#shown(value);
    const known = this.#values.filter((one) => one !== null);
    const peak = known.length ? Math.max(...known) : null;
    const spoken = peak === null ? "no value yet" : `now ${this.#number.textContent}, highest ${this.#shown(peak)}`;
    this.#picture.setAttribute("aria-label", `${this.#title}: ${spoken}`);
    this.#draw(this.#most || peak || 1);
  }

  #draw(top) {
    const step = WIDTH / (POINTS - 1);
    const offset = POINTS - this.#values.length;
    let line = "";
    let area = "";
    let run = []; // neighbours that have a value
    for (let at = 0; at <= this.#values.length; at += 1) {
      const value = this.#values[at] ?? null;
      if (value !== null) {
        const y = HEIGHT - 1.5 - (Math.min(value, top) / top) * (HEIGHT - 3);
        run.push([((offset + at) * step).toFixed(1), y.toFixed(1)]);
      } else if (run.length) {
        const points = run.map((point) => point.join(" ")).join(" L");
        line += `M${points}`;
        area += `M${run[0][0]} ${HEIGHT} L${points} L${run.at(-1)[0]} ${HEIGHT}Z`;
        run = [];
      }
    }
    this.#line.setAttribute("d", line);
    this.#area.setAttribute("d", area);
  }
}
