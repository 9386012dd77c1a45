// The canvas: strokes and images in up to two layers. Ink is a layer's alpha; its colour is for people alone, but where
// the canvas is in colour.

export const TINTS = ["#ff9a52", "#6cb2ff"];
const SIZE = 280;
const LARGEST_FILE = 20e6;

export class Drawing {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.steps = [];
    this.brush = 24;
    this.colour = "#ffffff";
    this.cursor = null;
    this.#listen();
    this.#use(SIZE, SIZE);
    Object.assign(this, { pen: 0, nPens: 1, inColour: false });
    this.show();
  }

  // Draw ink, by one pen or two, each on a layer.
  usePens(n) {
    this.#use(SIZE, SIZE);
    Object.assign(this, { pen: 0, nPens: n, inColour: false });
    this.redraw();
  }

  // Draw in colour, for images of this size: each of their pixels is a square of the canvas.
  useColour(height, width) {
    this.factor = Math.ceil(SIZE / Math.max(height, width));
    this.#use(this.factor * width, this.factor * height);
    Object.assign(this, { pen: 0, nPens: 1, inColour: true });
    this.redraw();
  }

  #use(width, height) {
    Object.assign(this.canvas, { width, height });
    this.canvas.style.aspectRatio = width / height;
    this.layers = [0, 1].map(() => new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true }));
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
  put(picture, pen, { x = 0, y = 0, joined = false, example = false, truth } = {}) {
    this.steps.push({ picture, pen, x, y, joined, example, truth });
    this.redraw();
  }

  redraw() {
    for (const layer of this.layers) layer.clearRect(0, 0, this.canvas.width, this.canvas.height);
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

  // The image as bytes, channel by channel: the mean of each square, on black; of one channel as luminance.
  pixels(channels) {
    const { factor, canvas: { width, height } } = this;
    const { data } = this.layers[0].getImageData(0, 0, width, height);
    const [rows, columns] = [height / factor, width / factor];
    const found = new Uint8Array(channels * rows * columns);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const sums = [0, 0, 0];
        for (let y = row * factor; y < (row + 1) * factor; y++) {
          for (let x = column * factor; x < (column + 1) * factor; x++) {
            const at = 4 * (y * width + x);
            for (let c = 0; c < 3; c++) sums[c] += (data[at + c] * data[at + 3]) / 255;
          }
        }
        const values = sums.map((sum) => sum / (factor * factor));
        const shown = channels === 3 ? values : [0.299 * values[0] + 0.587 * values[1] + 0.114 * values[2]];
        shown.forEach((value, c) => { found[(c * rows + row) * columns + column] = Math.round(value); });
      }
    }
    return found;
  }

  // What is known of the one picture that lies there, untouched.
  get truth() {
    return this.steps.length === 1 ? this.steps[0].truth : undefined;
  }

  show() {
    const context = this.canvas.getContext("2d");
    context.globalCompositeOperation = "source-over";
    context.fillStyle = this.inColour ? "#000" : "#0b0e14";
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.globalCompositeOperation = "lighter";
    for (const layer of this.layers.slice(0, this.nPens)) context.drawImage(layer.canvas, 0, 0);
    if (this.cursor) {
      context.globalCompositeOperation = "source-over";
      context.strokeStyle = this.cursor.down ? "#fff" : "#8a94a8";
      context.lineWidth = 2;
      context.beginPath();
      context.arc(this.cursor.x, this.cursor.y, (this.brush * this.#unit) / 2, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  // Two pixels of a large canvas are as one of a small one.
  get #unit() {
    return Math.max(this.canvas.width, this.canvas.height) / SIZE;
  }

  #colour(step) {
    if (this.inColour) return step.colour;
    return this.nPens === 1 ? "#fff" : TINTS[step.pen];
  }

  #draw(step) {
    const context = this.layers[Math.min(step.pen, this.nPens - 1)];
    if (step.picture) {
      const picture = this.inColour ? step.picture : tinted(step.picture, this.#colour(step));
      context.drawImage(picture, step.x, step.y);
      return;
    }
    context.strokeStyle = context.fillStyle = this.#colour(step);
    context.lineWidth = step.brush * this.#unit;
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
    this.steps.push({ points: [point], pen: this.pen, brush: this.brush, colour: this.colour });
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
      const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      return [x * canvas.width, y * canvas.height];
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
      this.cursor ??= { x: canvas.width / 2, y: canvas.height / 2, down: false };
      const { cursor } = this;
      if (event.key === " ") {
        cursor.down = !cursor.down;
        if (cursor.down) this.#start([cursor.x, cursor.y]);
      } else if (event.key in moves) {
        const [x, y] = moves[event.key];
        cursor.x = Math.min(canvas.width, Math.max(0, cursor.x + x * this.#unit));
        cursor.y = Math.min(canvas.height, Math.max(0, cursor.y + y * this.#unit));
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

// The browser decodes a file: the server never sees one.
export async function decoded(file) {
  if (file.size > LARGEST_FILE) throw new Error("The file is larger than 20 MB.");
  try {
    return await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no image that this browser reads.`);
  }
}

// An image file as a picture of its ink.
export async function pictureOf(file) {
  const bitmap = await decoded(file);
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
