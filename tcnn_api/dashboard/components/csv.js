// Tables as the server writes them.

import { ask } from "../server/http.js";

/**
 * What a job has measured in its training so far; null where there is nothing. A job that has not begun, or trains nothing, is not
 * asked for it: the browser would report a failed request.
 */
export async function measurements(job, options) {
  if (!job.attempt || job.kind !== "finetune" && !job.request.finetune) return null;
  try {
    return parse(await (await ask(`jobs/${job.id}/metrics.csv`, options)).text());
  } catch (error) {
    if (error.status !== 404) throw error;
    return null; // it has begun, and measured nothing yet
  }
}

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
