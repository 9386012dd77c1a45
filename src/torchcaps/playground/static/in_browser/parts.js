// The parts of a drawing: playground/parts.py.

import { asBase64, fromBase64 } from "./base64.js";
import { fitDrawing, fromBytes, toBytes, together, transformImage } from "./fit.js";
import { asBatch, program } from "./runtime.js";

let loaded = null;

export async function takeApart(message) {
  loaded ??= program("networks/parts.onnx");
  const inks = message.layers.map((layer) => fromBytes(fromBase64(layer)));
  const image = transformImage(fitDrawing(together(inks)), message);
  const { pictures, places } = await (await loaded).run({ images: asBatch(image) });
  const [n, height, width] = pictures.dims;
  return {
    parts: Array.from({ length: n }, (_, k) => ({
      image: asBase64(toBytes({ data: pictures.data.subarray(k * height * width, (k + 1) * height * width) })),
      x: places.data[2 * k],
      y: places.data[2 * k + 1],
    })),
  };
}
