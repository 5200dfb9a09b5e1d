// Numbers of the settings: the group and the range of each, and what it is if it is left out.  Pure;
// the server checks the ranges again.

export const FIELDS = {
  temperature: { group: "sampling", min: 0, max: 2, step: 0.05 },
  top_p: { group: "sampling", min: 0, max: 1, step: 0.05 },
  top_k: { group: "sampling", min: 0, step: 1 },
  min_p: { group: "sampling", min: 0, max: 1, step: 0.01 },
  repetition_penalty: { group: "sampling", min: 0.01, max: 100, step: 0.05 },
  seed: { group: "sampling", step: 1 },
  max_tokens: { group: "limits", min: 1, step: 1 },
  thinking_token_budget: { group: "limits", min: 0, step: 1 },
};
export const NUMBERS = Object.keys(FIELDS);
export const NO_NUMBER = "?"; // text of a field whose input is no number

const MAX_TOKENS = 1024; // of an answer, for a server that suggests no limit

// Return the limit of an answer's tokens for a model, an entry of GET /v1/models.
export function maxTokensOf(entry) {
  return entry?.suggested_max_tokens ?? Math.min(MAX_TOKENS, entry?.max_model_len ?? Infinity);
}

// Return the numbers that apply where the settings have none, as far as all `entries` agree.
export function defaultsOf(entries) {
  const all = entries.map((entry) => ({ ...entry?.default_sampling, max_tokens: maxTokensOf(entry) }));
  const isCommon = ([name, value]) => all.every((one) => one[name] === value);
  return Object.fromEntries(Object.entries(all[0] ?? {}).filter(isCommon));
}

// Return who chose the defaults of the sampling: "model", "server" or "operator"; "" if that is not known.
export function sourceOf(entries) {
  const sources = new Set(entries.map((entry) => entry?.sampling_source ?? ""));
  return sources.size === 1 ? [...sources][0] : "";
}
