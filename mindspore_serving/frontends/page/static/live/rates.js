// Rates of a servable per second, from two readings of its totals.  Pure.

// `before` is {row, time} or null, `row` the present reading, `time` in milliseconds.  A rate is
// undefined if the server does not report it, null if it is not known yet: there is no earlier
// reading, or the totals restarted at 0 with a worker.
export function rates(before, row, time) {
  const seconds = before ? (time - before.time) / 1000 : 0;
  const grown = (part, name) => {
    const now = row[part]?.[name];
    if (now === undefined) return undefined;
    const then = before?.row[part]?.[name];
    return then === undefined || now < then || seconds <= 0 ? null : now - then;
  };
  const rate = (part, name) => {
    const difference = grown(part, name);
    return typeof difference === "number" ? difference / seconds : difference;
  };
  return {
    requests: row.requests_per_second ?? rate("requests", "total"),
    generated: rate("engine", "num_generated_tokens"),
    prompt: rate("engine", "num_prompt_tokens"),
    steps: rate("engine", "num_steps"),
    hits: hits(row.engine, grown("engine", "num_cache_queries"), grown("engine", "num_cache_hits")),
  };
}

// Return the share of hits since the last reading; without requests, of all so far.
function hits(engine, asked, hit) {
  if (asked > 0 && hit !== null) return hit / asked;
  if (engine?.num_cache_queries === undefined) return undefined;
  return engine.num_cache_queries > 0 ? engine.num_cache_hits / engine.num_cache_queries : null;
}
