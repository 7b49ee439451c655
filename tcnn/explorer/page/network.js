// The network in this page: onnxruntime's WebAssembly runs it, on one thread, and every layer's content attention comes
// out beside its answer. Position is a product of two factors that are the same for all images, or comes out as well.

import { floats, mixed, nearest } from "./maps.js";
import * as ort from "./ort.js";

/** A file beside this page, with how much of it has come. */
async function fetched(name, size, tell) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name}: the file server answered ${response.status}; copy the whole folder`);
  const parts = [];
  let come = 0;
  const reader = response.body.getReader();
  for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
    parts.push(value);
    come += value.length;
    tell(value.length);
  }
  if (come !== size) throw new Error(`${name}: expected ${size} bytes, found ${come}; copy the whole folder`);
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Of what `model.json` tells: the network, ready for images. `tell(share)` hears how much has come of 1. */
export async function load(told, tell) {
  const total = told.files["ort.wasm"] + told.files["model.onnx"];
  let come = 0;
  const more = (length) => tell((come += length) / total);
  const runtime = await fetched("ort.wasm", told.files["ort.wasm"], more);
  const weights = await fetched("model.onnx", told.files["model.onnx"], more);
  Object.assign(ort.env.wasm, { numThreads: 1, wasmBinary: runtime });
  ort.env.logLevel = "error";
  const session = await ort.InferenceSession.create(weights, { executionProviders: ["wasm"] });
  const factor = (packed) => (packed === null ? null : floats(packed));
  const layers = told.layers.map((layer) => ({ ...layer, rows: factor(layer.rows), columns: factor(layer.columns) }));
  const [height, width] = told.input.size;
  return {
    /** Put an image through it; returns the answer, and `at(place)` for its maps. */
    async look(tensor) {
      const input = new ort.Tensor("float32", tensor, [1, told.input.mean.length, height, width]);
      const outputs = await session.run({ images: input });
      const all = layers.map((_, number) => ["content", "positional"].map((part) => outputs[`${part}_${number}`]?.data));
      return {
        logits: outputs.logits?.data ?? null,
        at: (place) => layers.map((layer, number) => at(layer, ...all[number], place)),
      };
    },
  };
}

/** A layer's maps, (K, H, W) one after the other, from the query nearest to a place; of all queries content, and position where it is no product. */
function at(layer, allContent, allPositional, place) {
  const [i, j] = nearest(layer, place);
  const [height, width] = layer.size;
  const [down, across] = layer.queries;
  const pixels = height * width;
  const content = new Float32Array(layer.heads * pixels);
  const positional = new Float32Array(layer.heads * pixels);
  for (let head = 0; head < layer.heads; head += 1) {
    const start = ((head * down + i) * across + j) * pixels;
    content.set(allContent.subarray(start, start + pixels), head * pixels);
    if (allPositional) positional.set(allPositional.subarray(start, start + pixels), head * pixels);
    for (let y = 0; y < height && !allPositional; y += 1) {
      const row = layer.rows[(head * down + i) * height + y];
      for (let x = 0; x < width; x += 1) positional[head * pixels + y * width + x] = row * layer.columns[(head * across + j) * width + x];
    }
  }
  const query = [i, j].map((place, axis) => layer.first[axis] + layer.stride[axis] * place);
  return mixed({ ...layer, query }, content, positional);
}
