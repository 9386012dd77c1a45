// What a network that segments says: masks over the image, how sure it is of each class, and its capsules' lengths.

import { fromBase64 } from "./base64.js";

const $ = (name) => document.getElementById(name);
const say = (value) => value.toFixed(2);
const INSIDE = 128; // a byte of a score above one half
const state = { network: null, seen: null, layers: [], chosen: 0 };

// Take another network: a row of each class, in its colour.
export function startMasks(network, rows) {
  Object.assign(state, { network, seen: null, layers: [], chosen: 0 });
  rows.forEach((row, k) => { row.querySelector(".bar").style.background = css(k); });
  $("bars").style.setProperty("--name", `${Math.max(...network.classes.map((name) => name.length))}ch`);
  const [, height, width] = network.shape;
  for (const name of ["overlay", "lengths", "truth", "overlay-beside"]) {
    Object.assign($(name), { width, height });
    $(name).style.aspectRatio = width / height;
  }
  $("truth-figure").hidden = true;
  $("beside-figure").hidden = !network.beside;
  $("beside-caption").textContent = `masks of ${network.beside ?? ""}`;
  $("pixel").textContent = POINT;
}

const POINT = "Point at the masks to read a pixel.";

export function blankMasks() {
  Object.assign(state, { seen: null, layers: [] });
  for (const name of ["overlay", "lengths", "truth", "overlay-beside"]) clear($(name));
  $("truth-figure").hidden = true;
  $("pixel").textContent = POINT;
  showLayer();
}

// `truth` has the true masks, of a test image that nobody touched.
export function showMasks(found, rows, truth) {
  const { network: { classes, beside } } = state;
  const size = count();
  const planes = (text) => classes.map((_, k) => fromBase64(text).subarray(k * size, (k + 1) * size));
  state.seen = {
    ...found,
    pixels: fromBase64(found.image),
    scores: planes(found.scores),
    besides: found.beside && planes(found.beside),
    truth: truth && planes(truth),
  };
  const there = [...classes.keys()].filter((k) => found.classes[k].area > 0)
    .sort((a, b) => found.classes[b].area - found.classes[a].area);
  rows.forEach((row, k) => {
    const { area, sure } = found.classes[k];
    row.className = area > 0 ? "there" : "";
    row.querySelector(".bar").style.width = `${100 * sure}%`;
    row.querySelector(".value").textContent = `${say(sure)} · ${area > 0 ? percent(area) : "nowhere"}`;
  });
  $("verdict").textContent = there.map((k) => classes[k]).join(", ") || "background alone";
  $("truth-figure").hidden = !truth;
  $("beside-figure").hidden = !beside;
  showViews();
}

export function masksInWords() {
  const { network: { classes }, seen } = state;
  const said = classes.map((name, k) => ({ name, ...seen.classes[k] })).filter(({ area }) => area > 0);
  return said.map(({ name, area, sure }) => `${name} on ${percent(area)} of the image (${say(sure)})`).join(", ");
}

export function chooseMask(label) {
  state.chosen = label;
  if (state.seen) showViews();
}

export function showViews() {
  const { network: { classes, capsules }, seen, chosen } = state;
  if (!seen) return;
  overlay($("overlay"), seen.scores);
  if (seen.besides) overlay($("overlay-beside"), seen.besides);
  if (seen.truth) overlay($("truth"), seen.truth);
  grey($("lengths"), seen.scores[chosen]);
  $("lengths-caption").textContent = `${capsules ? "length of the capsule" : "score"} of ${classes[chosen]} at each pixel`;
  $("truth-caption").textContent = seen.truth ? `true masks; Dice: ${dice(seen.scores, seen.truth, classes)}` : "";
  $("beside-caption").textContent = `masks of ${state.network.beside ?? ""}`
    + (seen.truth && seen.besides ? `; Dice: ${dice(seen.besides, seen.truth, classes)}` : "");
}

// The layers' lengths came: show the one of the slider.
export function showLayers({ layers }) {
  const slider = $("layer");
  if (Number(slider.max) !== layers.length && layers.length) slider.value = slider.max = layers.length;
  state.layers = layers;
  showLayer();
}

export function showLayer() {
  const [slider, { layers }] = [$("layer"), state];
  const layer = layers[Number(slider.value) - 1];
  document.querySelector("output[for=layer]").textContent = layers.length ? `${slider.value} / ${layers.length}` : "";
  $("layer-maps").replaceChildren();
  $("layer-says").textContent = "";
  if (!layer) return;
  const [types, height, width] = layer.shape;
  const bytes = fromBase64(layer.lengths);
  for (let t = 0; t < types; t++) {
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    canvas.style.aspectRatio = width / height;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Lengths of type ${t + 1}`);
    grey(canvas, bytes.subarray(t * height * width, (t + 1) * height * width));
    $("layer-maps").append(canvas);
  }
  const last = Number(slider.value) === layers.length;
  const what = last ? "class capsules" : types === 1 ? "type of capsule" : "types of capsule";
  $("layer-says").textContent = `${types} ${what} at ${width}×${height} places. White is a length of 1.`;
}

// What is said of the pixel under the pointer.
for (const name of ["overlay", "lengths", "truth", "overlay-beside"]) {
  $(name).addEventListener("pointermove", (event) => {
    const { network, seen } = state;
    if (!seen) return;
    const [, height, width] = network.shape;
    const box = event.target.getBoundingClientRect();
    const at = (part, n) => Math.min(n - 1, Math.max(0, Math.floor(part * n)));
    const row = at((event.clientY - box.top) / box.height, height);
    const column = at((event.clientX - box.left) / box.width, width);
    const said = network.classes
      .map((each, k) => ({ each, score: seen.scores[k][row * width + column] / 255 }))
      .sort((a, b) => b.score - a.score).slice(0, 4)
      .map(({ each, score }) => `${each} ${say(score)}`);
    $("pixel").textContent = `Row ${row + 1}, column ${column + 1}: ${said.join(", ")}.`;
  });
  $(name).addEventListener("pointerleave", () => { $("pixel").textContent = POINT; });
}

const percent = (part) => (part < 0.005 ? "< 1 %" : `${Math.round(100 * part)} %`);
const css = (k) => `rgb(${state.network.colours[k].join(" ")})`;

function count() {
  const [, height, width] = state.network.shape;
  return height * width;
}

// The image in grey, and the masks on it; where several are, their colours are mixed: explain/masks.py.
function overlay(canvas, masks) {
  const { network: { colours, shape: [channels, height, width] }, seen: { pixels } } = state;
  const opacity = Number($("opacity").value);
  const size = count();
  const data = new ImageData(width, height);
  for (let i = 0; i < size; i++) {
    let light = 0;
    for (let c = 0; c < channels; c++) light += pixels[c * size + i] / channels;
    const here = colours.filter((_, k) => masks[k][i] >= INSIDE);
    const mixed = [0, 1, 2].map((c) => {
      if (!here.length) return light * (1 - 0.4 * opacity);
      return (1 - opacity) * light + (opacity * here.reduce((sum, colour) => sum + colour[c], 0)) / here.length;
    });
    data.data.set([...mixed, 255], 4 * i);
  }
  canvas.getContext("2d").putImageData(data, 0, 0);
}

function grey(canvas, bytes) {
  const data = new ImageData(canvas.width, canvas.height);
  bytes.forEach((value, i) => data.data.set([value, value, value, 255], 4 * i));
  canvas.getContext("2d").putImageData(data, 0, 0);
}

function clear(canvas) {
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
}

// The Dice score of each class that is there or was found.
function dice(found, truth, classes) {
  const said = [];
  classes.forEach((name, k) => {
    let [both, sum] = [0, 0];
    for (let i = 0; i < found[k].length; i++) {
      const [one, two] = [found[k][i] >= INSIDE, truth[k][i] >= INSIDE];
      both += one && two;
      sum += one + two;
    }
    if (sum) said.push(`${name} ${say((2 * both) / sum)}`);
  });
  return said.join(", ") || "nothing there";
}
