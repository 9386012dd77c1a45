// A toy from all sides: what is said of every view comes at once, so that going round it asks for nothing.

import { ask } from "./api.js";
import { fromBase64 } from "./base64.js";
import { showImages } from "./pictures.js";

const $ = (name) => document.getElementById(name);
const state = { toy: null, asked: 0 };

// Show the card; `failed` gets what goes wrong.
export function startToys({ name, toys }, failed) {
  $("toy").replaceChildren(...toys.map((toy, k) => new Option(toy, k)));
  $("toy").addEventListener("change", () => load(Number($("toy").value), toys).catch(failed));
  for (const slider of ["around", "above"]) $(slider).addEventListener("input", () => show(toys));
  $("toy-network").textContent = name;
  document.querySelector(".toys").hidden = false;
  return load(0, toys).catch(failed);
}

async function load(index, toys) {
  state.asked = index;
  const toy = await ask("toy", { toy: index });
  if (state.asked !== index) return; // another was chosen meanwhile
  const angles = { around: distinct(toy.azimuths), above: distinct(toy.elevations) };
  state.toy = { ...toy, angles, pixels: fromBase64(toy.images) };
  for (const [name, values] of Object.entries(angles)) $(name).max = values.length - 1;
  show(toys);
}

function show(toys) {
  const { toy } = state;
  if (!toy) return;
  const [azimuth, elevation] = ["around", "above"].map((name) => toy.angles[name][Number($(name).value)]);
  const round = toy.angles.around.map((each) => viewAt(toy, each, elevation));
  const view = viewAt(toy, azimuth, elevation);
  const scores = toy.scores[view];
  const size = toy.side ** 2;
  showImages($("toy-view"), [toy.pixels.subarray(view * size, (view + 1) * size)]);
  for (const [name, angle] of [["around", azimuth], ["above", elevation]]) {
    document.querySelector(`output[for="${name}"]`).textContent = `${angle}°`;
  }
  const said = toys[scores.indexOf(Math.max(...scores))];
  $("toy-says").textContent = said;
  const right = toy.scores.filter((each) => each.indexOf(Math.max(...each)) === toy.label).length;
  const moved = length(toy.poses[view].map((value, d) => value - toy.poses[round[0]][d])) / length(toy.poses[round[0]]);
  $("toy-numbers").textContent = `Predicted: ${said} (${Math.max(...scores).toFixed(2)}); from ${right} of `
    + `${toy.scores.length} sides ${toys[toy.label]}. Since ${toy.angles.around[0]}° its pose moved by ${Math.round(100 * moved)} %.`;
  draw($("toy-turn"), round.map((k) => toy.scores[k][toy.label]), round.map((k) => toy.poses[k]), round.indexOf(view));
}

function viewAt(toy, azimuth, elevation) {
  return toy.azimuths.findIndex((each, k) => each === azimuth && toy.elevations[k] === elevation);
}

const length = (values) => Math.hypot(...values);
const distinct = (values) => [...new Set(values)].sort((a, b) => a - b);

// Lines over the way round: the activation, 0 … 1, above the pose's numbers, from the least to the largest.
function draw(svg, activations, poses, now) {
  const make = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const x = (k) => 8 + (284 * k) / Math.max(1, activations.length - 1);
  const line = (values, y, stroke, width) => make("polyline", {
    points: values.map((value, k) => `${x(k).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
    fill: "none", stroke, "stroke-width": width, "stroke-linejoin": "round",
  });
  const all = poses.flat();
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const within = (value) => 112 - (72 * (value - least)) / (most - least || 1);
  svg.replaceChildren(
    ...poses[0].map((_, d) => line(poses.map((pose) => pose[d]), within, `hsl(${(360 * d) / poses[0].length} 45% 65%)`, 1)),
    line(activations, (value) => 30 - 24 * value, "#ff9a52", 2.5),
    make("line", { x1: x(now), x2: x(now), y1: 4, y2: 116, stroke: "#fff", "stroke-width": 1, "stroke-dasharray": "2 3" }),
  );
}
