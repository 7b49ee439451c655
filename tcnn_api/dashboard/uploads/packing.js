// A folder of images as one tar, which the browser reads from the disk while it is sent: nothing of it is held in memory.

const BLOCK = 512;
const letters = new TextEncoder();

// As the server's names.py has them: what it keeps, what nobody misses, and what an operating system leaves behind.
const IMAGES = ["jpg", "jpeg", "jpe", "jfif", "mpo", "png", "apng", "webp", "avif", "avifs", "bmp", "gif", "tif", "tiff", "jp2", "j2k", "j2c", "jpc",
  "jpf", "jpx", "ico", "ppm", "pgm", "pbm", "pnm"];
const COMPANIONS = ["txt", "md", "html", "json", "jsonl", "xml", "yaml", "yml", "csv", "tsv", "ini", "log", "cls", "npy", "npz", "mat", "pfm"];
const JUNK = /(^|\/)(\.|(__macosx|thumbs\.db)(\/|$))/i;

/** Whether a file is sent, by its path: an `image`, one that may be `missed`, of which the server counts the name, or neither, null. */
export function kindOf(path) {
  const extension = /(?<=\.)[^./]*$/.exec(path)?.[0].toLowerCase();
  if (JUNK.test(path) || COMPANIONS.includes(extension)) return null;
  if (IMAGES.includes(extension)) return "image";
  return /[\p{Cc}\\]/u.test(path) ? null : "missed"; // a name that the server refuses, such as that of a folder's icon on a Mac
}

/** What is sent of a file that `read()` resolves with: all of an image, the name of what may be missed. */
async function sent(path, read) {
  const kind = kindOf(path);
  return kind ? [{ path, kind, file: kind === "image" ? await read() : new File([], path) }] : [];
}

/**
 * What is sent of what was dropped: `[{path, kind, file}]` of a folder's entry, with the paths below it; and its folders, which
 * have no file: a class without a single image is for the server to notice, and not to vanish here.
 */
export async function filesOf(entry, above = "") {
  const path = above + entry.name;
  if (entry.isFile) return sent(path, () => new Promise((resolve, reject) => entry.file(resolve, reject)));
  if (JUNK.test(path)) return [];
  const reader = entry.createReader();
  const found = [{ path, file: null }];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // a hundred at a time
    if (!some.length) return found;
    for (const one of some) for (const inner of await filesOf(one, `${path}/`)) found.push(inner);
  }
}

/** The same of a folder that was chosen in a field. */
export async function chosenFiles(list) {
  const all = [...list].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
  const folders = new Set(all.flatMap(({ path }) => path.split("/").slice(0, -1).map((_, depth, parts) => parts.slice(0, depth + 1).join("/"))));
  const files = await Promise.all(all.map(({ path, file }) => sent(path, async () => file)));
  return [...[...folders].filter((path) => !JUNK.test(path)).map((path) => ({ path, file: null })), ...files.flat()];
}

/** An uncompressed tar, since images do not compress; in one order, so that the same folder is the same file. */
export function tar(name, files) {
  const sorted = [...files].sort((one, other) => (one.path < other.path ? -1 : 1));
  const parts = sorted.flatMap(({ path, file }) => {
    const record = extended("path", path);
    const named = [header(record.length, "x"), record, padding(record.length)];
    return file ? [...named, header(file.size, "0"), file, padding(file.size)] : [...named, header(0, "5")];
  });
  return new File([...parts, new Uint8Array(2 * BLOCK)], `${name}.tar`, { type: "application/x-tar" });
}

/** A name of any length and in any letters, as POSIX has it: `LENGTH KEY=VALUE\n`, the length that of all of it. */
function extended(key, value) {
  const body = letters.encode(` ${key}=${value}\n`);
  let length = body.length;
  while (String(length).length + body.length !== length) length = String(length).length + body.length;
  return new Uint8Array([...letters.encode(String(length)), ...body]);
}

function header(size, type) {
  const block = new Uint8Array(BLOCK);
  const put = (text, place) => block.set(letters.encode(text), place);
  put("image", 0);
  put("0000644\0", 100);
  put("0000000\0", 108);
  put("0000000\0", 116);
  put(`${size.toString(8).padStart(11, "0")}\0`, 124);
  put("00000000000\0", 136);
  put("        ", 148); // of itself the sum counts blanks
  put(type, 156);
  put("ustar\u000000", 257);
  const sum = block.reduce((total, byte) => total + byte, 0);
  put(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  return block;
}

function padding(size) {
  return new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);
}
