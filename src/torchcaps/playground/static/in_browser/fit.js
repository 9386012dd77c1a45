// From ink on a canvas to the image that a network was trained on: playground/drawing.py, step by step.
// An image is {data: Float32Array, height, width}, of values 0 … 1, row by row.

const BOX = 20;
const SIDE = 28;
const FAINTEST = 0.04;

export const image = (height, width) => ({ data: new Float32Array(height * width), height, width });

export function fromBytes(bytes) {
  const side = Math.round(Math.sqrt(bytes.length));
  return { data: Float32Array.from(bytes, (value) => value / 255), height: side, width: side };
}

export function toBytes({ data }) {
  return Uint8Array.from(data, (value) => Math.round(255 * Math.min(1, Math.max(0, value))));
}

// Cut out the ink, scale it into 20×20, and lay its centre of mass in the middle of 28×28.
export function fitDrawing(ink) {
  const box = cut(ink);
  if (!box) return image(SIDE, SIDE);
  const scale = BOX / Math.max(box.height, box.width);
  const size = [box.height, box.width].map((n) => Math.max(1, nearest(n * scale)));
  const digit = scale > 1 ? enlarge(box, ...size) : shrink(box, ...size);
  const [y, x] = centreOfMass(digit);
  const fitted = image(SIDE, SIDE);
  add(fitted, digit, up(SIDE / 2 - y), up(SIDE / 2 - x));
  return fitted;
}

// Fit each drawing on its own, shift it by where it was drawn, and sum them.
export function overlayDrawings(inks, margin) {
  const side = SIDE + 2 * margin;
  const whole = image(side, side);
  for (const ink of inks) {
    const size = [ink.height, ink.width];
    const [down, right] = centreOfMass(ink).map((centre, k) => {
      const shift = nearest((centre / size[k] - 0.5) * SIDE);
      return Math.max(-margin, Math.min(margin, shift));
    });
    add(whole, fitDrawing(ink), margin + down, margin + right);
  }
  return clamped(whole);
}

// All ink of the canvas as one drawing.
export function together(inks) {
  const whole = image(inks[0].height, inks[0].width);
  for (const ink of inks) add(whole, ink, 0, 0);
  return clamped(whole);
}

export function padded(inner, margin) {
  const outer = image(inner.height + 2 * margin, inner.width + 2 * margin);
  add(outer, inner, margin, margin);
  return outer;
}

// Shear an image, rotate it (degrees, clockwise) and shift it; what comes in from outside is black.
export function transformImage(source, { rotate = 0, shift_x: right = 0, shift_y: down = 0, shear = 0 }) {
  if (!rotate && !right && !down && !shear) return source;
  const [c, s] = [Math.cos((rotate * Math.PI) / 180), Math.sin((rotate * Math.PI) / 180)];
  const { height, width } = source;
  const moved = image(height, width);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const [x, y] = [column - (width - 1) / 2 - right, row - (height - 1) / 2 - down];
      const [u, v] = [c * x + s * y, c * y - s * x];
      moved.data[row * width + column] = between(source, v + (height - 1) / 2, u + shear * v + (width - 1) / 2);
    }
  }
  return moved;
}

// The value between four pixels, of which those outside are black.
function between(source, row, column) {
  const [top, left] = [Math.floor(row), Math.floor(column)];
  const at = (y, x) => (y < 0 || x < 0 || y >= source.height || x >= source.width ? 0 : source.data[y * source.width + x]);
  const [v, u] = [row - top, column - left];
  return (1 - v) * ((1 - u) * at(top, left) + u * at(top, left + 1))
    + v * ((1 - u) * at(top + 1, left) + u * at(top + 1, left + 1));
}

function cut(ink) {
  let [top, bottom, left, right] = [Infinity, -1, Infinity, -1];
  ink.data.forEach((value, i) => {
    if (value <= FAINTEST) return;
    const [row, column] = [Math.floor(i / ink.width), i % ink.width];
    [top, bottom] = [Math.min(top, row), Math.max(bottom, row)];
    [left, right] = [Math.min(left, column), Math.max(right, column)];
  });
  if (bottom < 0) return null;
  const box = image(bottom - top + 1, right - left + 1);
  add(box, ink, -top, -left);
  return box;
}

// Each pixel is the mean of those that it covers.
function shrink(box, height, width) {
  const small = image(height, width);
  const [rows, columns] = [covered(box.height, height), covered(box.width, width)];
  rows.forEach(([top, bottom], row) => columns.forEach(([left, right], column) => {
    let sum = 0;
    for (let y = top; y < bottom; y++) for (let x = left; x < right; x++) sum += box.data[y * box.width + x];
    small.data[row * width + column] = sum / ((bottom - top) * (right - left));
  }));
  return small;
}

function covered(n, parts) {
  return Array.from({ length: parts }, (_, k) => [Math.floor((k * n) / parts), Math.ceil(((k + 1) * n) / parts)]);
}

// Between pixels a straight line; at the edge, the pixel there.
function enlarge(box, height, width) {
  const large = image(height, width);
  const [rows, columns] = [neighbours(box.height, height), neighbours(box.width, width)];
  rows.forEach(([top, bottom, v], row) => columns.forEach(([left, right, u], column) => {
    const line = (y) => (1 - u) * box.data[y * box.width + left] + u * box.data[y * box.width + right];
    large.data[row * width + column] = (1 - v) * line(top) + v * line(bottom);
  }));
  return large;
}

function neighbours(n, parts) {
  return Array.from({ length: parts }, (_, k) => {
    const place = Math.max(0, ((k + 0.5) * n) / parts - 0.5);
    const first = Math.floor(place);
    return [first, Math.min(first + 1, n - 1), place - first];
  });
}

// (row, column), measured from the upper left corner; the middle where there is no ink.
function centreOfMass({ data, height, width }) {
  let [mass, rows, columns] = [0, 0, 0];
  data.forEach((value, i) => {
    mass += value;
    rows += value * (Math.floor(i / width) + 0.5);
    columns += value * ((i % width) + 0.5);
  });
  return mass > 0 ? [rows / mass, columns / mass] : [height / 2, width / 2];
}

// Add a part to an image, and leave out what stands over its edge.
function add(whole, part, firstRow, firstColumn) {
  for (let row = Math.max(0, -firstRow); row < part.height && row + firstRow < whole.height; row++) {
    for (let column = Math.max(0, -firstColumn); column < part.width && column + firstColumn < whole.width; column++) {
      whole.data[(row + firstRow) * whole.width + column + firstColumn] += part.data[row * part.width + column];
    }
  }
}

function clamped(whole) {
  whole.data.forEach((value, i) => { whole.data[i] = Math.min(1, value); });
  return whole;
}

// Round up, but not what rounding alone puts above a whole number.
const up = (value) => Math.ceil(value - 1e-4);
const nearest = (value) => up(value - 0.5);
