// A job as what would submit it again: for a shell with curl, for Python, for the command line.

/** The request of a job, with what it is called. */
function body(job) {
  const labels = { name: job.name, tags: job.tags?.length ? job.tags : null, note: job.note };
  return { ...job.request, ...Object.fromEntries(Object.entries(labels).filter(([, value]) => value)) };
}

/** A word of a shell, whatever is in it. */
function quoted(word) {
  return /^[\w./:=@%+,-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`;
}

/** `server` is its address without a slash at the end; `keyed`, whether it wants a key. */
export function asCurl(job, { server, keyed }) {
  return [
    "curl --fail-with-body --silent --show-error", `--header ${quoted("Content-Type: application/json")}`,
    ...(keyed ? ['--header "Authorization: Bearer $TCNN_API_KEY"'] : []),
    `--data-raw ${quoted(JSON.stringify(body(job)))}`, quoted(`${server}/${job.kind}`),
  ].join(" \\\n  ");
}

export function asPython(job, { server, keyed }) {
  return `${keyed ? "import os\n\n" : ""}from tcnn_jobs.client import Client

with Client(${literal(server)}${keyed ? ', key=os.environ["TCNN_API_KEY"]' : ""}) as client:
    job = client.submit(${literal(job.kind)}, ${literal(body(job), "    ")})
    print(job["id"])
`;
}

/** A value of JSON as Python writes it. */
function literal(value, indent = "") {
  if (value === null) return "None";
  if (value === true || value === false) return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const items = Array.isArray(value) ? value.map((item) => literal(item, `${indent}    `))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, `${indent}    `)}`);
  const line = `${open}${items.join(", ")}${close}`;
  if (line.length + indent.length <= 100 && !line.includes("\n")) return line;
  return `${open}\n${items.map((item) => `${indent}    ${item},\n`).join("")}${indent}${close}`;
}

// Fields of a request that have an option of their own; all others are said by --field.
const OPTIONS = {
  stride: "--stride", stage: "--stage", target: "--target", temperature: "--temperature", head_dim: "--head-dim", content: "--content",
  content_heads: "--content-heads", query_key: "--query-key", num_classes: "--num-classes", weights: "--weights", dataset: "--data", val: "--val",
  preset: "--preset", num_workers: "--nproc", priority: "--priority", max_attempts: "--max-attempts", max_runtime: "--max-runtime",
  stall_minutes: "--stall-minutes", webhook: "--webhook", name: "--name",
};
const SOURCE = ["job", "checkpoint", "model"];

export function asCommand(job, { server }) {
  const { finetune, against = [], depends_on: after = [], tags = [], config = finetune?.config ?? {}, pretrained = true, baseline = finetune?.baseline, ...rest } = body(job);
  const { config: _, baseline: __, ...training } = finetune ?? {};
  const source = SOURCE.find((name) => rest[name]);
  const options = [];
  for (const [name, value] of Object.entries({ ...rest, ...training })) {
    if (name === source || value === null) continue;
    options.push(name in OPTIONS ? option(OPTIONS[name], String(value)) : option("--field", `${name}=${JSON.stringify(value)}`));
  }
  if (!pretrained) options.push("--no-pretrained");
  if (baseline) options.push("--baseline");
  for (const [name, value] of settings(config)) options.push(option("--set", `${name}=${JSON.stringify(value)}`));
  if (against.some((other) => other.weights)) options.push(option("--field", `against=${JSON.stringify(against)}`)); // no option says so much
  else for (const other of against) options.push(option("--against", other[SOURCE.find((name) => other[name])]));
  for (const other of after) options.push(option("--depends-on", other));
  for (const tag of tags) options.push(option("--tag", tag));
  options.push(option("--server", server));
  return [`tcnn jobs submit ${job.kind} ${quoted(rest[source])}`, ...options].join(" \\\n  ");
}

function option(name, value) {
  return quoted(value).startsWith("-") ? `${name}=${quoted(value)}` : `${name} ${quoted(value)}`;
}

function settings(config, prefix = "") {
  return Object.entries(config).flatMap(([name, value]) => (value !== null && typeof value === "object" && !Array.isArray(value)
    ? settings(value, `${prefix}${name}.`) : [[`${prefix}${name}`, value]]));
}
