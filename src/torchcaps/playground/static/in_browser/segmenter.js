// One network that segments, run by onnxruntime-web: playground/masks.py.

import { asBase64, fromBase64 } from "./base64.js";
import { load } from "./files.js";
import { toBytes, transformImage } from "./fit.js";
import { asBatch, program } from "./runtime.js";

export class Segmenter {
  static async load(about, { there }) {
    const segmenter = new Segmenter();
    Object.assign(segmenter, { about, there, samples: null });
    const { masks, beside } = about.programs;
    [segmenter.masks, segmenter.beside] = await Promise.all([masks, beside].map((name) => (name ? program(name) : null)));
    return segmenter;
  }

  async see(message) {
    const image = this.#read(message);
    const scores = await scoresBy(this.masks, image);
    const beside = this.beside && await scoresBy(this.beside, image);
    return {
      image: asBase64(toBytes(image)),
      scores: asBase64(this.#parted(scores)),
      classes: this.about.classes.map((_, k) => this.#sure(plane(scores, k, this.about.classes.length))),
      beside: beside && asBase64(this.#parted(beside)),
    };
  }

  async explain(message) {
    const { scores, ...lengths } = await this.masks.run({ images: asBatch(this.#read(message)) });
    const layers = Object.keys(lengths).map((_, k) => lengths[`lengths_${k + 1}`]);
    return { layers: layers.map(({ dims, data }) => ({ shape: [...dims], lengths: asBase64(toBytes({ data })) })) };
  }

  // A test image with its true masks, each pixel of which is a bit.
  async sample({ seed }) {
    const { samples, samples_file: file, shape, classes } = this.about;
    if (!samples) throw new Error("There is no test image: draw, or load an image file.");
    this.samples ??= new Uint8Array(await (await load(file)).arrayBuffer());
    const index = seed % samples;
    const [, height, width] = shape;
    const pixels = shape[0] * height * width;
    const one = this.samples.length / samples;
    const image = this.samples.subarray(index * one, index * one + pixels);
    const bits = this.samples.subarray(index * one + pixels, (index + 1) * one);
    const masks = Uint8Array.from({ length: classes.length * height * width }, (_, i) => 255 * ((bits[i >> 3] >> (i & 7)) & 1));
    return { image: asBase64(image), masks: asBase64(masks), index };
  }

  // The image of a message, channel by channel, moved as it says.
  #read(message) {
    const [channels, height, width] = this.about.shape;
    const values = Float32Array.from(fromBase64(message.image), (value) => value / 255);
    const data = new Float32Array(values.length);
    for (let c = 0; c < channels; c++) {
      data.set(transformImage({ data: plane(values, c, channels), height, width }, message).data, c * height * width);
    }
    return { data, height, width };
  }

  // As bytes, scores near one half stay on their side of it: 128 and more are inside.
  #parted(scores) {
    return toBytes({ data: scores }).map((value, i) => (scores[i] > this.there ? Math.max(128, value) : Math.min(127, value)));
  }

  // The share of pixels that a class has, and its mean score there; where it has none, its highest score.
  #sure(scores) {
    const inside = scores.filter((score) => score > this.there);
    const sum = inside.reduce((total, score) => total + score, 0);
    return {
      area: inside.length / scores.length,
      sure: inside.length ? sum / inside.length : scores.reduce((most, score) => Math.max(most, score)),
    };
  }
}

async function scoresBy(network, image) {
  return (await network.run({ images: asBatch(image) }, ["scores"])).scores.data;
}

// Number k of n equal parts.
function plane(values, k, n) {
  const size = values.length / n;
  return values.subarray(k * size, (k + 1) * size);
}
