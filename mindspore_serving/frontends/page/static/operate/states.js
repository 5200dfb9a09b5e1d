// States for the operator's view, from the server's answers.  Pure.

export const LEVELS = ["debug", "info", "warning", "error", "none"]; // who logs one logs all behind it
const FLAGS = { info: "log_info", warning: "log_warning", error: "log_error" };

// Settings of GET v2/logging for each level, and back.
export function toSettings(level) {
  const shown = LEVELS.slice(LEVELS.indexOf(level));
  const flags = Object.entries(FLAGS).map(([name, flag]) => [flag, shown.includes(name)]);
  return { log_verbose_level: Number(level === "debug"), ...Object.fromEntries(flags) };
}

export function toLevel(settings) {
  if (settings.log_verbose_level) return "debug";
  return Object.keys(FLAGS).find((name) => settings[FLAGS[name]]) ?? "none";
}

// Return servables by name: [{name, isLoaded, versions: [{version, state, reason, workers}]}].
// `index` is the answer of POST v2/repository/index, `servables` that of GET servables.
export function merged(index, servables) {
  const methods = new Set(servables.flatMap((row) => Object.keys(row.methods ?? {}).map((one) => `${row.name}.${one}`)));
  const found = new Map();
  for (const { name, version, state, reason } of index) {
    const row = servables.find((one) => one.name === name && String(one.version) === version);
    if (!row && methods.has(name)) continue; // another method of a servable that is loaded
    if (!found.has(name)) found.set(name, { name, isLoaded: false, versions: [] });
    const one = found.get(name);
    one.isLoaded ||= row !== undefined;
    one.versions.push({ version, state, reason, workers: row?.workers ?? [] });
  }
  return [...found.values()].sort((one, other) => one.name.localeCompare(other.name));
}

// Return the loaded share of a version, from 0 to 1, that its reason ("still loading, 40 %") has;
// null if it has none.
export function shareOf({ state, reason }) {
  const percent = state === "LOADING" ? /(\d+) %/.exec(reason ?? "")?.[1] : undefined;
  return percent === undefined ? null : Math.min(1, Number(percent) / 100);
}

// Return the key of a text for an age, and its values: ["age.hours", { count: 3 }].
export function ageOf(seconds) {
  const units = [["age.days", 86400], ["age.hours", 3600], ["age.minutes", 60], ["age.seconds", 1]];
  const [key, length] = units.find(([, each]) => seconds >= each) ?? units.at(-1);
  return [key, { count: Math.floor(seconds / length) }];
}

// Return the machines of workers, the server's first: [{node, ready, others, servables}].
export function machines(servables) {
  const found = new Map([["", { node: "", ready: 0, others: 0, servables: [] }]]);
  for (const { name, workers = [] } of servables) {
    for (const { node, state } of workers) {
      if (!found.has(node)) found.set(node, { node, ready: 0, others: 0, servables: [] });
      const one = found.get(node);
      one[state === "ready" ? "ready" : "others"] += 1;
      if (!one.servables.includes(name)) one.servables.push(name);
    }
  }
  return [...found.values()].sort((one, other) => one.node.localeCompare(other.node));
}
