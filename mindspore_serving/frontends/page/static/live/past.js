// History that the server stores, as rows like those of GET servables.  Pure.

// Return {key: [{age, row}]} of an answer of GET servables/history; `age` in milliseconds.
export function rowsOf({ columns, servables }) {
  const toRow = (numbers) => {
    const row = {};
    columns.forEach((column, at) => put(row, column.split("."), numbers[at]));
    return { age: 1000 * row.age, row };
  };
  return new Map(servables.map((one) => [keyOf(one), one.rows.map(toRow)]));
}

export function keyOf({ name, version }) {
  return JSON.stringify([name, version]);
}

// Leave out values that the server did not report, as in a row of GET servables.
function put(row, [part, name], value) {
  if (value === null) return;
  if (name === undefined) row[part] = value;
  else (row[part] ??= {})[name] = value;
}

// Compare: language models first, then by name and version.
export function inOrder(servables) {
  const rank = (one) => [one.model || one.engine ? 0 : 1, one.name, one.version];
  return [...servables].sort((one, other) => {
    const [a, b] = [rank(one), rank(other)];
    return a[0] - b[0] || a[1].localeCompare(b[1]) || a[2] - b[2];
  });
}
