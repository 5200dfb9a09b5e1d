// Input fields of a method, and the values that they yield.  Pure.
//
// A spec is {name, dtype, shape, optional, schema} as GET servables has it.  A value is {json: ...}
// or {file: name, b64: text}.

const CELLS = 36; // numbers that have a box each
const OPEN = 2; // optional inputs that are not folded
const FILES = /image|img|photo|picture|audio|sound|file/i;

// "file", "text", "bool", "number", "grid" (a row or rows of numbers), "json", or "any" where the
// servable does not say what it takes.
export function kindOf({ name, dtype, shape, schema }) {
  if (schema) return "number";
  if (dtype === "bytes" || (dtype === null && FILES.test(name))) return "file";
  if (dtype === null) return "any";
  const sizes = (shape ?? []).map((size) => size ?? 1);
  if (sizes.length === 0) return { str: "text", bool: "bool" }[dtype] ?? "number";
  const isGrid = sizes.length <= 2 && sizes.reduce((all, one) => all * one, 1) <= CELLS;
  return isGrid && dtype !== "str" && dtype !== "bool" ? "grid" : "json";
}

// What a number may be: {min, max, step} as an input has them, "" for none; `over` says that `min`
// itself is excluded, `value` is what is taken if none is given.
export function limitsOf({ dtype, schema = {} }) {
  const [, sign, bits] = /^(u?)int(8|16|32)$/.exec(dtype ?? "") ?? [];
  const size = bits ? 2 ** bits : 0;
  const own = bits ? { min: sign ? 0 : -size / 2, max: (sign ? size : size / 2) - 1 } : { min: "", max: "" };
  const isWhole = schema.type === "integer" || /int/.test(dtype ?? "");
  return {
    min: schema.minimum ?? schema.exclusiveMinimum ?? own.min,
    max: schema.maximum > Number.MAX_SAFE_INTEGER ? "" : schema.maximum ?? own.max,
    step: isWhole ? 1 : "any",
    over: schema.exclusiveMinimum !== undefined,
    value: schema.default ?? "",
  };
}

// Split the specs into those shown at once and those folded: if there are many, all optional ones but
// the first are folded.
export function fold(specs) {
  const optional = specs.filter((spec) => spec.optional);
  const folded = optional.length > OPEN + 1 ? optional.slice(OPEN) : [];
  return [specs.filter((spec) => !folded.includes(spec)), folded];
}

// Return the rows and columns of a grid.
export function gridOf({ shape }) {
  const sizes = shape.map((size) => size ?? 1);
  return sizes.length === 1 ? [1, sizes[0]] : sizes;
}

// Return the numbers of a grid's inputs, row by row, in the shape of the tensor.
export function fromGrid(spec, texts) {
  const numbers = texts.map((text) => toNumber(spec, text));
  if (spec.shape.length === 1) return numbers;
  const [rows, columns] = gridOf(spec);
  return Array.from({ length: rows }, (_, row) => numbers.slice(row * columns, (row + 1) * columns));
}

// Parse the text of an input of another kind.  Throws SyntaxError with a reason.
export function fromText(spec, kind, text) {
  if (kind === "number") return toNumber(spec, text);
  if (kind === "json") return JSON.parse(text);
  return kind === "any" ? loose(text) : text;
}

// Return an initial value.
export function example({ name, shape }, kind) {
  if (kind === "number" || kind === "grid") return "1";
  if (kind === "text" || kind === "any") return /prompt|text/i.test(name) ? "Hello" : "";
  const fill = (inner, size) => Array(Math.min(size ?? 1, 4)).fill(inner);
  return kind === "json" ? JSON.stringify((shape ?? []).reduceRight(fill, 1)) : "";
}

function toNumber({ name }, text) {
  if (text.trim() === "" || !Number.isFinite(Number(text))) throw new SyntaxError(`${name}: "${text}"`);
  return Number(text);
}

// Parse JSON; other text stays text.
function loose(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
