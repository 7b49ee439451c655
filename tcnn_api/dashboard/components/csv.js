// Tables as the server writes them.

/** CSV as Python's csv module writes it: quotes only where they are needed, doubled inside. */
export function parse(text) {
  const lines = [[]];
  const cell = /("(?:[^"]|"")*"|[^,\n]*)(,|\n|$)/g;
  for (let found; (found = cell.exec(text)) && !(found[0] === "" && found.index >= text.length); ) {
    const word = found[1];
    lines.at(-1).push(word.startsWith('"') ? word.slice(1, -1).replaceAll('""', '"') : word);
    if (found[2] === "\n") lines.push([]);
    if (found[2] === "") break;
  }
  const [columns = [], ...rest] = lines.filter((line) => line.length);
  return { columns, rows: rest.filter((line) => line.length === columns.length).map((line) => Object.fromEntries(columns.map((name, place) => [name, line[place]]))) };
}
