// Images in colour as pictures of the canvas, for networks that segment: each of their pixels is a square of it.

import { decoded } from "./drawing.js";

// Bytes of an image, channel by channel.
export function photo(bytes, [channels, height, width]) {
  const small = new OffscreenCanvas(width, height);
  const pixels = new ImageData(width, height);
  const size = height * width;
  for (let i = 0; i < size; i++) {
    const colour = channels === 3 ? [0, 1, 2].map((c) => bytes[c * size + i]) : [bytes[i], bytes[i], bytes[i]];
    pixels.data.set([...colour, 255], 4 * i);
  }
  small.getContext("2d").putImageData(pixels, 0, 0);
  return small;
}

// An image file, resized whatever its proportions and laid on white, as images to train on are.
export async function photoOf(file, [, height, width]) {
  const bitmap = await decoded(file);
  const small = new OffscreenCanvas(width, height);
  const context = small.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  return small;
}

// As large as the canvas.
export function enlarged(small, factor) {
  const large = new OffscreenCanvas(factor * small.width, factor * small.height);
  const context = large.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, large.width, large.height);
  return large;
}
