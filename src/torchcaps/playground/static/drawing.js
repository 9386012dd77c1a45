// The canvas: strokes and images in up to two layers. Ink is a layer's alpha; its colour is for people alone.

export const TINTS = ["#ff9a52", "#6cb2ff"];
const SIZE = 280;
const LARGEST_FILE = 20e6;

export class Drawing {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.layers = [0, 1].map(() => {
      const layer = new OffscreenCanvas(SIZE, SIZE);
      return layer.getContext("2d", { willReadFrequently: true });
    });
    this.steps = [];
    this.pen = 0;
    this.nPens = 1;
    this.brush = 24;
    this.cursor = null;
    this.#listen();
    this.show();
  }

  usePens(n) {
    this.nPens = n;
    this.pen = 0;
    this.redraw();
  }

  clear() {
    this.steps = [];
    this.redraw();
  }

  undo() {
    this.steps.pop();
    while (this.steps.length && this.steps.at(-1).joined) this.steps.pop();
    this.redraw();
  }

  // Lay a picture (a canvas whose alpha is the ink, one for each pen) down.
  // One that is shown as an example makes room for the first stroke.
  put(picture, pen, { x = 0, y = 0, joined = false, example = false } = {}) {
    this.steps.push({ picture, pen, x, y, joined, example });
    this.redraw();
  }

  redraw() {
    for (const layer of this.layers) layer.clearRect(0, 0, SIZE, SIZE);
    for (const step of this.steps) this.#draw(step);
    this.show();
    this.changed();
  }

  get isEmpty() {
    return this.steps.length === 0;
  }

  // The ink of each layer as side × side bytes: the mean of what each of them covers.
  inks(side) {
    const factor = SIZE / side;
    return this.layers.slice(0, this.nPens).map((layer) => {
      const { data } = layer.getImageData(0, 0, SIZE, SIZE);
      const ink = new Uint8Array(side * side);
      for (let row = 0; row < side; row++) {
        for (let column = 0; column < side; column++) {
          let sum = 0;
          for (let y = row * factor; y < (row + 1) * factor; y++) {
            for (let x = column * factor; x < (column + 1) * factor; x++) sum += data[4 * (y * SIZE + x) + 3];
          }
          ink[row * side + column] = Math.round(sum / (factor * factor));
        }
      }
      return ink;
    });
  }

  show() {
    const context = this.canvas.getContext("2d");
    context.globalCompositeOperation = "source-over";
    context.fillStyle = "#0b0e14";
    context.fillRect(0, 0, SIZE, SIZE);
    context.globalCompositeOperation = "lighter";
    for (const layer of this.layers.slice(0, this.nPens)) context.drawImage(layer.canvas, 0, 0);
    if (this.cursor) {
      context.globalCompositeOperation = "source-over";
      context.strokeStyle = this.cursor.down ? "#fff" : "#8a94a8";
      context.lineWidth = 2;
      context.beginPath();
      context.arc(this.cursor.x, this.cursor.y, this.brush / 2, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  #colour(pen) {
    return this.nPens === 1 ? "#fff" : TINTS[pen];
  }

  #draw(step) {
    const context = this.layers[Math.min(step.pen, this.nPens - 1)];
    if (step.picture) {
      context.drawImage(tinted(step.picture, this.#colour(step.pen)), step.x, step.y);
      return;
    }
    context.strokeStyle = context.fillStyle = this.#colour(step.pen);
    context.lineWidth = step.brush;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    const [first, ...others] = step.points;
    context.moveTo(...first);
    for (const point of others) context.lineTo(...point);
    if (!others.length) context.lineTo(first[0] + 0.01, first[1]);
    context.stroke();
  }

  #start(point) {
    const anew = this.steps.some((step) => step.example);
    if (anew) this.steps = [];
    this.steps.push({ points: [point], pen: this.pen, brush: this.brush });
    if (anew) this.redraw();
    else this.#extend([]);
  }

  // The new part of the last stroke alone: all of it anew would take ever longer.
  #extend(points) {
    const stroke = this.steps.at(-1);
    const from = stroke.points.at(-1);
    stroke.points.push(...points);
    this.#draw({ ...stroke, points: [from, ...points] });
    this.show();
    this.changed();
  }

  #listen() {
    const { canvas } = this;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * SIZE, ((event.clientY - box.top) / box.height) * SIZE];
    };
    let pointer = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (pointer !== null || event.button > 0) return;
      pointer = event.pointerId;
      canvas.setPointerCapture(pointer);
      this.cursor = null;
      this.#start(place(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerId !== pointer) return;
      const events = event.getCoalescedEvents?.() ?? [];
      this.#extend((events.length ? events : [event]).map(place));
    });
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, (event) => {
        if (event.pointerId === pointer) pointer = null;
      });
    }
    const moves = { ArrowLeft: [-6, 0], ArrowRight: [6, 0], ArrowUp: [0, -6], ArrowDown: [0, 6] };
    canvas.addEventListener("keydown", (event) => {
      this.cursor ??= { x: SIZE / 2, y: SIZE / 2, down: false };
      const { cursor } = this;
      if (event.key === " ") {
        cursor.down = !cursor.down;
        if (cursor.down) this.#start([cursor.x, cursor.y]);
      } else if (event.key in moves) {
        const [x, y] = moves[event.key];
        cursor.x = Math.min(SIZE, Math.max(0, cursor.x + x));
        cursor.y = Math.min(SIZE, Math.max(0, cursor.y + y));
        if (cursor.down) this.#extend([[cursor.x, cursor.y]]);
      } else return;
      event.preventDefault();
      this.show();
    });
    canvas.addEventListener("blur", () => {
      this.cursor = null;
      this.show();
    });
  }
}

// A test image as a picture: bytes of a square, each a square of pixels.
export function picture(bytes) {
  const side = Math.round(Math.sqrt(bytes.length));
  const small = new OffscreenCanvas(side, side);
  const pixels = new ImageData(side, side);
  bytes.forEach((value, i) => pixels.data.set([255, 255, 255, value], 4 * i));
  small.getContext("2d").putImageData(pixels, 0, 0);
  const large = new OffscreenCanvas(SIZE, SIZE);
  const context = large.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, SIZE, SIZE);
  return large;
}

// An image file as a picture. The browser decodes it: the server never sees a file.
export async function pictureOf(file) {
  if (file.size > LARGEST_FILE) throw new Error("The file is larger than 20 MB.");
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no image that this browser reads.`);
  }
  const canvas = new OffscreenCanvas(SIZE, SIZE);
  const context = canvas.getContext("2d");
  const scale = Math.min(SIZE / bitmap.width, SIZE / bitmap.height);
  const [width, height] = [Math.max(1, Math.round(bitmap.width * scale)), Math.max(1, Math.round(bitmap.height * scale))];
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height);
  const grey = new Float32Array(width * height);
  for (let i = 0; i < grey.length; i++) {
    const [red, green, blue] = pixels.data.subarray(4 * i, 4 * i + 3);
    grey[i] = (0.299 * red + 0.587 * green + 0.114 * blue) / 255;
  }
  const edge = [];
  for (let x = 0; x < width; x++) edge.push(grey[x], grey[(height - 1) * width + x]);
  for (let y = 0; y < height; y++) edge.push(grey[y * width], grey[(y + 1) * width - 1]);
  const ground = edge.sort((a, b) => a - b)[edge.length >> 1];
  let furthest = 0.05;
  for (const value of grey) furthest = Math.max(furthest, Math.abs(value - ground));
  grey.forEach((value, i) => {
    const ink = Math.abs(value - ground) / furthest;
    pixels.data.set([255, 255, 255, ink < 0.3 ? 0 : 255 * ink], 4 * i); // less is paper and shadow
  });
  context.clearRect(0, 0, SIZE, SIZE);
  context.putImageData(pixels, (SIZE - width) >> 1, (SIZE - height) >> 1);
  return canvas;
}

function tinted(source, colour) {
  const canvas = new OffscreenCanvas(SIZE, SIZE);
  const context = canvas.getContext("2d");
  context.drawImage(source, 0, 0);
  context.globalCompositeOperation = "source-in";
  context.fillStyle = colour;
  context.fillRect(0, 0, SIZE, SIZE);
  return canvas;
}
