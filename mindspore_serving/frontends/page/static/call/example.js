// Example instance of a method, as text: JSON, or a Python program that prints it if it is long.
// The specs are those of /servables.

const FEW = 32; // numbers that a line may show one by one
const VALUES = { str: '"text"', bytes: '{"b64": ""}', bool: "true", null: "1.5" };

// Return the command that calls the URL with one instance.
export function callLine(url, specs) {
  const needed = specs.filter((spec) => !spec.optional);
  if (needed.every((spec) => product(sizes(spec)) <= FEW)) {
    return `curl ${url} -d ${quoted(body(needed, short))}`;
  }
  const program = `import json; true = True; print(json.dumps(${body(needed, long)}))`;
  return `python3 -c ${quoted(program)} | curl ${url} -d @-`;
}

// Quote for a POSIX shell.
export function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function body(specs, write) {
  const items = specs.map((spec) => `${JSON.stringify(spec.name)}: ${write(spec)}`);
  return `{"instances": [{${items.join(", ")}}]}`;
}

// Return the dimensions; free dimensions are 1.
function sizes(spec) {
  return (spec.shape ?? []).map((size) => size ?? 1);
}

function product(numbers) {
  return numbers.reduce((all, number) => all * number, 1);
}

function value({ name, dtype }) {
  if (name === "prompt" && (dtype === null || dtype === "str")) return '"Hello"';
  return VALUES[dtype] ?? (dtype.startsWith("float") ? "1.5" : "1");
}

function short(spec) {
  const repeat = (text, size) => `[${Array(size).fill(text).join(", ")}]`;
  return sizes(spec).reduceRight(repeat, value(spec));
}

// Return a Python expression.
function long(spec) {
  return sizes(spec).reduceRight((text, size) => `[${text}] * ${size}`, value(spec));
}
