// An image file without its EXIF data, of which browsers read how the camera was held, and turn the image. timm does not.

const READERS = [jpeg, png, webp];

/** The file, or a copy without EXIF data if it is a JPEG, PNG or WebP that has any. */
export async function unturned(file) {
  const bytes = new DataView(await file.arrayBuffer());
  for (const read of READERS) {
    const exif = bytes.byteLength > 16 ? [...read(bytes)] : [];
    if (exif.length > 0) return without(file, exif);
  }
  return file;
}

/** The file with other bytes in the place of some: [start, end, bytes instead]. */
function without(file, pieces) {
  const kept = [];
  let from = 0;
  for (const [start, end, instead] of pieces) {
    kept.push(file.slice(from, start), instead);
    from = end;
  }
  return new Blob([...kept, file.slice(from)], { type: file.type });
}

function named(bytes, at, name) {
  return [...name].every((letter, place) => bytes.getUint8(at + place) === letter.charCodeAt(0));
}

/** Segments APP1, up to the scan. */
function* jpeg(bytes) {
  if (bytes.getUint16(0) !== 0xffd8) return;
  for (let at = 2; at + 4 <= bytes.byteLength && bytes.getUint8(at) === 0xff && bytes.getUint8(at + 1) !== 0xda;) {
    const end = at + 2 + bytes.getUint16(at + 2);
    if (bytes.getUint8(at + 1) === 0xe1) yield [at, end, ""];
    at = end;
  }
}

/** Chunks eXIf. */
function* png(bytes) {
  if (!named(bytes, 1, "PNG")) return;
  for (let at = 8; at + 12 <= bytes.byteLength;) {
    const end = at + 12 + bytes.getUint32(at);
    if (named(bytes, at + 4, "eXIf")) yield [at, end, ""];
    at = end;
  }
}

/** Chunks EXIF get another name, so that the file's length stays what it says. */
function* webp(bytes) {
  if (!named(bytes, 0, "RIFF") || !named(bytes, 8, "WEBP")) return;
  for (let at = 12; at + 8 <= bytes.byteLength;) {
    const length = bytes.getUint32(at + 4, true);
    if (named(bytes, at, "EXIF")) yield [at, at + 4, "NONE"];
    at += 8 + length + (length % 2);
  }
}
