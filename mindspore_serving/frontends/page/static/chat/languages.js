// Programming languages whose code is coloured, by the names that answers use.  Pure.

const ALIASES = {
  bash: "sh zsh", c: "h", cpp: "c++ cc hpp cxx", csharp: "cs c#", css: "scss", diff: "patch",
  dockerfile: "docker", go: "golang", haskell: "hs", ini: "toml conf cfg", java: "", javascript: "js jsx mjs cjs node",
  json: "jsonc json5 ipynb", julia: "jl", kotlin: "kt", latex: "tex", lua: "", makefile: "make mk", markdown: "md",
  perl: "pl", php: "", powershell: "ps1 pwsh", protobuf: "proto", python: "py python3 py3", r: "", ruby: "rb",
  rust: "rs", scala: "", shell: "console shellsession", sql: "mysql postgresql sqlite", swift: "",
  typescript: "ts tsx", xml: "html svg xhtml vue", yaml: "yml",
};
const INNER = { markdown: ["xml"], php: ["xml"], shell: ["bash"], xml: ["css", "javascript"] }; // parts in other languages

// Return the language that an answer calls `name`, "" for an unknown one.
export function languageOf(name) {
  const wanted = name.toLowerCase();
  const isIt = ([language, aliases]) => language === wanted || aliases.split(" ").includes(wanted);
  return wanted ? Object.entries(ALIASES).find(isIt)?.[0] ?? "" : "";
}

// Return a language and those that it contains.
export function withInner(language) {
  return [language, ...(INNER[language] ?? [])];
}
