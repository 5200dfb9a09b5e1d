// Time series: every second of the last two minutes, and every five of the hour before.
// Pure; times in milliseconds.

const RECENT = 120; // points
const STEP = 4500; // at least, between two older ones
const HOUR = 3600000;
const GAP = 15000; // so long without a value is a gap in the line

export class Points {
  #recent = [];
  #older = [];

  // `value` is null if there is none.
  push(value, time) {
    this.#recent.push({ value, time });
    if (this.#recent.length <= RECENT) return;
    const one = this.#recent.shift();
    const last = this.#older.at(-1);
    if (!last || one.time - last.time >= STEP) this.#older.push(one);
    while (time - this.#older[0]?.time > HOUR) this.#older.shift();
  }

  since(time) {
    return [...this.#older, ...this.#recent].filter((one) => one.time >= time);
  }

  // Return runs of consecutive points with a value, each as a list.
  runs(since) {
    const found = [];
    let last = null;
    for (const one of this.since(since)) {
      if (one.value === null) last = null;
      else if (last && one.time - last.time < GAP) found.at(-1).push((last = one));
      else found.push([(last = one)]);
    }
    return found;
  }

  // Return the point with a value that is nearest to `time`; null if there is none.
  nearest(time, since) {
    const all = this.since(since).filter((one) => one.value !== null);
    const closer = (best, one) => (Math.abs(one.time - time) < Math.abs(best.time - time) ? one : best);
    return all.length ? all.reduce(closer) : null;
  }
}
