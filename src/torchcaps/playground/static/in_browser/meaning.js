// What each number of a pose does to the reconstruction: playground/meaning.py, of what the decoder's program measured.

// All poses that are decoded to name the numbers of one: each number is moved to `steps` places.
export function moved(pose, { reach, steps }) {
  return pose.flatMap((_, k) => offsets(reach, steps).map((offset) => pose.map((value, i) => (i === k ? value + offset : value))));
}

// Names with a sign in front, from measures by name, each a list of what was measured of the moved poses.
export function named(measures, nDimensions, { reach, steps, seen, straight, ahead }) {
  return Array.from({ length: nDimensions }, (_, k) => {
    const effects = Object.entries(measures).map(([name, all]) => {
      const values = all.slice(k * steps, (k + 1) * steps);
      return { name, values, size: Math.abs(values.at(-1) - values[0]) / seen[name] };
    });
    const [first, second] = effects.sort((a, b) => b.size - a.size);
    if (first.size < 1 || first.size < ahead * second.size) return null;
    const line = correlation(first.values, offsets(reach, steps));
    if (!(line ** 2 >= straight)) return null;
    return `${line > 0 ? "+" : "−"}${first.name}`;
  });
}

function offsets(reach, steps) {
  return Array.from({ length: steps }, (_, i) => reach * ((2 * i) / (steps - 1) - 1));
}

function correlation(a, b) {
  const centred = (values) => values.map((value) => value - values.reduce((sum, each) => sum + each, 0) / values.length);
  const [x, y] = [centred(a), centred(b)];
  const dot = (u, v) => u.reduce((sum, value, i) => sum + value * v[i], 0);
  return dot(x, y) / Math.sqrt(dot(x, x) * dot(y, y));
}
