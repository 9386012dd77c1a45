// The networks' programs, run by onnxruntime-web.

import { load } from "./files.js";
import * as onnxruntime from "./onnxruntime.js";

// One thread: several would ask for headers (COOP, COEP) that few hosts of files send.
onnxruntime.env.wasm.numThreads = 1;
onnxruntime.env.wasm.wasmPaths = { wasm: new URL("onnxruntime.wasm", import.meta.url).href };

export const { Tensor } = onnxruntime;

export async function program(name) {
  return onnxruntime.InferenceSession.create(new Uint8Array(await (await load(name)).arrayBuffer()));
}

// An image, channel by channel, as a batch of one.
export function asBatch({ data, height, width }) {
  return new Tensor("float32", data, [1, data.length / (height * width), height, width]);
}
