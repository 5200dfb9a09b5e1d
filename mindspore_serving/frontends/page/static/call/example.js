// Example instance of a method, as text: JSON, or a Python program that prints it if it is long.
// The specs are those of /servables: their example is a value, repeated over a shape.

const FEW = 32; // numbers that a line may show one by one

// Return the command that calls the URL with one instance.
export function callLine(url, specs) {
  const needed = specs.filter((spec) => !spec.optional);
  if (needed.every(({ example }) => product(example.shape) <= FEW)) {
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
  const items = specs.map((spec) => `${JSON.stringify(spec.name)}: ${write(spec.example)}`);
  return `{"instances": [{${items.join(", ")}}]}`;
}

function product(numbers) {
  return numbers.reduce((all, number) => all * number, 1);
}

function short({ value, shape }) {
  const repeat = (text, size) => `[${Array(size).fill(text).join(", ")}]`;
  return shape.reduceRight(repeat, JSON.stringify(value));
}

// Return a Python expression.
function long({ value, shape }) {
  return shape.reduceRight((text, size) => `[${text}] * ${size}`, JSON.stringify(value));
}
