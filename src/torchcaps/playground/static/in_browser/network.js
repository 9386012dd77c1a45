// One network of the page, run by onnxruntime-web: playground/network.py.

import { asBase64, fromBase64 } from "./base64.js";
import { fitDrawing, fromBytes, overlayDrawings, padded, toBytes, together, transformImage } from "./fit.js";
import { moved, named } from "./meaning.js";
import { asBatch, program, Tensor } from "./runtime.js";

export class Network {
  static async load(about, constants) {
    const network = new Network();
    Object.assign(network, { about, constants, margin: (about.side - 28) / 2 });
    const { inside, decoder, beside } = about.programs;
    [network.inside, network.decoder, network.beside] = await Promise.all(
      [inside, decoder, beside].map((name) => (name ? program(name) : null)),
    );
    return network;
  }

  async see(message) {
    const { image, found, shown } = await this.#look(message);
    return {
      image: asBase64(toBytes(image)),
      scores: [...found.scores],
      shown: shown.map(({ label, pose, pixels }) => ({ label, pose, image: pixels && asBase64(bytesOf(pixels)) })),
      beside: this.beside && [...(await this.beside.run({ images: asBatch(image) })).probabilities.data],
    };
  }

  async explain(message) {
    const { image, found, shown } = await this.#look(message);
    const meanings = [];
    if (this.decoder) for (const { pose, label } of shown) meanings.push(await this.#meanings(pose, label));
    return {
      extent: this.about.extent,
      iterations: this.#iterations(found),
      image: asBase64(toBytes(image)),
      labels: shown.map(({ label }) => label),
      meanings,
    };
  }

  // The reconstruction's bytes.
  async decode(pose, label) {
    return bytesOf(await this.#reconstruct(pose, label));
  }

  async #look(message) {
    const inks = message.layers.map((layer) => fromBytes(fromBase64(layer)));
    const image = transformImage(this.#fit(inks), message);
    const outputs = await this.inside.run({ images: asBatch(image) });
    const found = Object.fromEntries(Object.entries(outputs).map(([name, { data }]) => [name, data]));
    const size = found.poses.length / found.scores.length;
    const shown = this.#found(found.scores).map((label) => ({ label, pose: [...found.poses.subarray(label * size, (label + 1) * size)] }));
    for (const each of shown) each.pixels = this.decoder && await this.#reconstruct(each.pose, each.label);
    if (this.#isSwapped(shown, inks, message)) shown.reverse();
    return { image, found, shown };
  }

  #fit(inks) {
    return this.about.pairs ? overlayDrawings(inks, this.margin) : padded(fitDrawing(together(inks)), this.margin);
  }

  // The strongest class, and of a network for pairs the second too, where its capsule is long enough.
  #found(scores) {
    const [first, second] = [...scores.keys()].sort((a, b) => scores[b] - scores[a]);
    return this.about.pairs && scores[second] >= this.constants.present ? [first, second] : [first];
  }

  // Whether the second of two reconstructions lies on the first pen's ink: colours are to be the pens'.
  #isSwapped(shown, inks, message) {
    if (shown.length < 2 || inks.length < 2 || !this.decoder) return false;
    const [first, second] = inks.map((ink) => transformImage(overlayDrawings([ink], this.margin), message).data);
    const [one, two] = shown.map(({ pixels }) => pixels.reduce((sum, value, i) => sum + value * (first[i] - second[i]), 0));
    return one < two;
  }

  async #decode(poses, label) {
    const given = new Tensor("float32", poses.flat(), [poses.length, poses[0].length]);
    return this.decoder.run({ poses: given, label: new Tensor("int64", [BigInt(label)], [1]) });
  }

  async #reconstruct(pose, label) {
    return (await this.#decode([pose], label)).images.data;
  }

  async #meanings(pose, label) {
    const { strokes } = await this.#decode(moved(pose, this.constants), label);
    const [, n] = strokes.dims;
    const measures = Object.fromEntries(
      Object.keys(this.constants.seen).map((name, k) => [name, [...strokes.data.subarray(k * n, (k + 1) * n)]]),
    );
    return named(measures, pose.length, this.constants);
  }

  #iterations({ lengths, share, activity, capsules, activation, coupling }) {
    const { extent: [left, right, bottom, top], map_shape: [, rows, columns], classes } = this.about;
    const places = [...capsules].map((capsule) => {
      const place = Number(capsule) % (rows * columns);
      const [row, column] = [Math.floor(place / columns), place % columns];
      return [top + ((bottom - top) / rows) * (row + 0.5), left + ((right - left) / columns) * (column + 0.5)];
    });
    const types = [...capsules].map((capsule) => Math.floor(Number(capsule) / (rows * columns)));
    const n = lengths.length / classes.length;
    const steps = [lengths, share, activity, coupling].map((values) => nested([...values], n));
    return Array.from({ length: n }, (_, t) => {
      const [scores, shares, active, couplings] = steps.map((values) => values[t]);
      return {
        scores,
        share: nested(shares, classes.length).map((each) => nested(each, rows)),
        activity: nested(active, rows),
        tree: { places, types, activation: [...activation], coupling: nested(couplings, places.length) },
      };
    });
  }
}

const bytesOf = (pixels) => toBytes({ data: pixels });

// A flat list in n equal parts.
function nested(values, n) {
  const size = values.length / n;
  return Array.from({ length: n }, (_, k) => values.slice(k * size, (k + 1) * size));
}
