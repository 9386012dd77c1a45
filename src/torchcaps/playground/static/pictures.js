// Draw what the networks said: images, votes over the image, and the parse tree.

import { fromBase64 } from "./base64.js";
import { TINTS } from "./drawing.js";

// One image in grey, or two in two colours; each as bytes, or base64 of them.
export function showImages(canvas, given, { inColour = false } = {}) {
  const images = given.map((each) => (typeof each === "string" ? fromBase64(each) : each));
  const side = Math.round(Math.sqrt(images[0].length));
  canvas.width = canvas.height = side;
  const pixels = new ImageData(side, side);
  for (let i = 0; i < side * side; i++) {
    const colour = [0, 0, 0];
    images.forEach((image, k) => {
      const tint = inColour ? channels(TINTS[k]) : [255, 255, 255];
      tint.forEach((part, c) => { colour[c] += (part * image[i]) / 255; });
    });
    pixels.data.set([...colour.map((part) => Math.min(255, part)), 255], 4 * i);
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

// A dot for each place of the map: larger where capsules are more active, warmer the more of it the class gets.
export function showVotes(canvas, text, { extent, step, label }) {
  const context = canvas.getContext("2d");
  const size = canvas.width;
  const image = fromBase64(text);
  const side = Math.round(Math.sqrt(image.length));
  const unit = size / side;
  context.fillStyle = "#0b0e14";
  context.fillRect(0, 0, size, size);
  image.forEach((value, i) => {
    context.fillStyle = `rgb(255 255 255 / ${(0.3 * value) / 255})`;
    context.fillRect((i % side) * unit, Math.floor(i / side) * unit, unit + 0.5, unit + 0.5);
  });
  const share = step.share[label];
  const even = 1 / step.share.length;
  const [left, right, bottom, top] = extent;
  const rows = share.length;
  const columns = share[0].length;
  const cell = (unit * (right - left)) / columns;
  share.forEach((line, row) => line.forEach((part, column) => {
    const x = (left + ((column + 0.5) * (right - left)) / columns + 0.5) * unit;
    const y = (top + ((row + 0.5) * (bottom - top)) / rows + 0.5) * unit;
    context.fillStyle = mixed("#5c6a86", TINTS[0], ahead(part, even));
    context.globalAlpha = 0.85;
    context.beginPath();
    context.arc(x, y, Math.max(1, (cell / 2) * Math.sqrt(step.activity[row][column])), 0, 2 * Math.PI);
    context.fill();
  }));
  context.globalAlpha = 1;
}

// Each part in a colour of its own, moved away from the middle by `apart` times its place.
export function showParts(canvas, parts, apart) {
  const context = canvas.getContext("2d");
  const frame = 40; // 28 pixels, and room for what moves out
  const unit = canvas.width / frame;
  context.globalCompositeOperation = "source-over";
  context.fillStyle = "#0b0e14";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.globalCompositeOperation = "lighter";
  parts.forEach((part, k) => {
    const image = fromBase64(part.image);
    const side = Math.round(Math.sqrt(image.length));
    const small = new OffscreenCanvas(side, side);
    const pixels = new ImageData(side, side);
    const colour = hue(k / parts.length);
    image.forEach((value, i) => pixels.data.set([...colour, value], 4 * i));
    small.getContext("2d").putImageData(pixels, 0, 0);
    const corner = (frame - side) / 2;
    context.drawImage(small, unit * (corner + apart * part.x), unit * (corner + apart * part.y), unit * side, unit * side);
  });
}

// Lines from the most active capsules to the class that each is coupled to most.
export function showTree(svg, text, { step, classes, shown, side }) {
  const make = (name, attributes, content) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (content !== undefined) element.textContent = content;
    return element;
  };
  const picture = document.createElement("canvas");
  showImages(picture, [text]);
  const parts = [make("image", { href: picture.toDataURL(), x: 10, y: 10, width: 180, height: 180, opacity: 0.35 })];
  const unit = 180 / side;
  const rowOf = (k) => 12 + (176 * (k + 0.5)) / classes.length;
  const { places, types, activation, coupling } = step.tree;
  const even = 1 / classes.length;
  places.forEach(([row, column], n) => {
    const angle = 2.4 * types[n];
    const radius = 0.35 * Math.sqrt(types[n]);
    const x = 10 + (column + 0.5 + radius * Math.cos(angle)) * unit;
    const y = 10 + (row + 0.5 + radius * Math.sin(angle)) * unit;
    const most = Math.max(...coupling[n]);
    coupling[n].forEach((value, k) => {
      if (value < most * (1 - 1e-4)) return;
      const found = shown.indexOf(k);
      parts.push(make("path", {
        d: `M${x} ${y} C ${x + 40} ${y}, 215 ${rowOf(k)}, 258 ${rowOf(k)}`, fill: "none",
        stroke: found < 0 ? "#8a94a8" : TINTS[found], "stroke-width": 0.6 + ahead(most, even),
        opacity: Math.min(1, activation[n] * (0.15 + 0.85 * ahead(most, even))),
      }));
    });
    parts.push(make("circle", { cx: x, cy: y, r: 1.8, fill: "#fff" }));
  });
  classes.forEach((name, k) => {
    const found = shown.indexOf(k);
    const colour = found < 0 ? "#a5afc2" : TINTS[found];
    parts.push(make("circle", { cx: 262, cy: rowOf(k), r: 2 + 6 * step.scores[k] ** 2, fill: colour }));
    parts.push(make("text", {
      x: 274, y: rowOf(k) + 4, fill: colour, "font-size": 12, "font-weight": found < 0 ? 400 : 700,
    }, name.slice(0, 4)));
  });
  svg.replaceChildren(...parts);
}

// How far a coupling exceeds an even share: 0 of an even one, 1 of four times as much.
function ahead(coupling, even) {
  return Math.min(1, Math.max(0, Math.log(coupling / even) / Math.log(4)));
}

// A bright colour; 0 and 1 are the same red.
function hue(turn) {
  return [0, 1, 2].map((c) => {
    const away = Math.abs(((6 * turn + 6 - 2 * c) % 6) - 3) - 1;
    return Math.round(255 * (0.35 + 0.65 * Math.min(1, Math.max(0, away))));
  });
}

function channels(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

function mixed(from, to, t) {
  const [a, b] = [channels(from), channels(to)];
  return `rgb(${a.map((part, c) => Math.round(part + t * (b[c] - part))).join(" ")})`;
}
