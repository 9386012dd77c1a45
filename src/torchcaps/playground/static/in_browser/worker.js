// Answer the page's questions one after the other: what playground/answers.py says, computed in this browser.

import { asBase64 } from "./base64.js";
import { load } from "./files.js";
import { Network } from "./network.js";
import { takeApart } from "./parts.js";
import { Segmenter } from "./segmenter.js";

const about = load("about.json").then((response) => response.json());
const networks = new Map();
let samples = null;

const answers = {
  playground: () => about,
  see: async (message) => (await network(message)).see(message),
  explain: async (message) => (await network(message)).explain(message),
  decode: async (message) => ({ image: asBase64(await (await network(message)).decode(message.pose, message.label)) }),
  take_apart: takeApart,
  toy: async ({ toy }) => (await load(`toys/${toy}.json`)).json(),
  sample,
};

// Loaded once it is asked for: few visitors try every network.
async function network({ network: index }) {
  const { networks: known, constants } = await about;
  const kind = known[index].segments ? Segmenter : Network;
  if (!networks.has(index)) networks.set(index, kind.load(known[index], constants));
  try {
    return await networks.get(index);
  } catch (error) {
    networks.delete(index); // so that the next question tries again
    throw error;
  }
}

// Classifiers share their test images; a network that segments has its own.
async function sample(message) {
  const { networks: known, test_images: shared } = await about;
  if (known[message.network]?.segments) return (await network(message)).sample(message);
  const { labels, side } = shared;
  samples ??= new Uint8Array(await (await load("samples.bin")).arrayBuffer());
  const index = message.seed % labels.length;
  const size = side * side;
  return { image: asBase64(samples.subarray(index * size, (index + 1) * size)), label: labels[index], index };
}

let turn = Promise.resolve();
addEventListener("message", ({ data: { id, name, message } }) => {
  turn = turn.then(async () => {
    try {
      postMessage({ id, answer: await answers[name](message) });
    } catch (error) {
      postMessage({ id, error: String(error?.message ?? error) });
    }
  });
});
