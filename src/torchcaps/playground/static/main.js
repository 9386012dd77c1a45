// The page: what is drawn is sent at once, the newest state alone; what comes back is shown.

import { ask } from "./api.js";
import { asBase64, fromBase64 } from "./base64.js";
import { Drawing, picture, pictureOf } from "./drawing.js";
import { blankMasks, chooseMask, masksInWords, showLayer, showLayers, showMasks, showViews, startMasks } from "./masks.js";
import { enlarged, photo, photoOf } from "./photo.js";
import { showImages, showParts, showTree, showVotes } from "./pictures.js";
import { startToys } from "./toys.js";

const $ = (name) => document.getElementById(name);
const MOVES = ["rotate", "shear", "shift_x", "shift_y"];
const say = (value) => value.toFixed(2);

const about = await ask("playground");
const state = { network: about.networks[0], seen: null, explained: null, chosen: null, pose: null, still: null, parts: null };
const drawing = new Drawing($("canvas"), changed);

let working = 0;
function count(change) {
  working += change;
  document.documentElement.toggleAttribute("data-working", working > 0);
}

// One question at a time of each kind; while one is asked, the newest state waits, and those between are dropped.
function latest(work) {
  let busy = false;
  let again = false;
  return async function run() {
    again = true;
    if (busy) return;
    busy = true;
    count(1);
    try {
      while (again) {
        again = false;
        await work();
      }
      problem("");
    } catch (error) {
      problem(error.message);
    } finally {
      busy = false;
      count(-1);
    }
  };
}

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

// Say so where an answer takes long, as the first one does while a network is loaded.
async function patiently(answer) {
  const waiting = setTimeout(() => { $("waiting").hidden = false; }, 500);
  try {
    return await answer;
  } finally {
    clearTimeout(waiting);
    $("waiting").hidden = true;
  }
}

function message() {
  const moves = Object.fromEntries(MOVES.map((name) => [name, Number($(name).value)]));
  const asked = { network: about.networks.indexOf(state.network), ...moves };
  if (state.network.segments) return { ...asked, image: asBase64(drawing.pixels(state.network.shape[0])) };
  return { ...asked, layers: drawing.inks(about.canvas).map(asBase64) };
}

const isStill = (sent) => MOVES.every((name) => sent[name] === 0);
const rows = () => [...$("bars").children];

let drawnAt = 0;
let pause = 0;
function changed() {
  drawnAt = performance.now();
  clearTimeout(pause);
  pause = setTimeout(() => { explain(); takeApart(); attack(); }, 120);
  see();
}

const see = latest(async () => {
  const since = drawnAt;
  if (drawing.isEmpty) {
    state.seen = null;
    blank();
    return;
  }
  const { network } = state;
  const sent = message();
  const { truth } = drawing;
  const seen = await patiently(ask("see", sent));
  if (network !== state.network || drawing.isEmpty) return; // another was chosen meanwhile, or all was wiped
  state.seen = seen;
  if (network.segments) {
    showMasks(seen, rows(), isStill(sent) ? truth : undefined);
    speak();
  } else {
    if (isStill(sent)) state.still = state.seen;
    showSeen();
  }
  performance.measure("stroke to bars", { start: since, end: performance.now() });
});

const explain = latest(async () => {
  const { network } = state;
  if (drawing.isEmpty || (network.segments && !network.capsules)) return;
  const found = await ask("explain", message());
  if (network !== state.network || !state.seen) return; // another was chosen meanwhile, or all was wiped
  if (network.segments) {
    showLayers(found);
    return;
  }
  state.explained = found;
  showAgreement();
  nameSliders();
});

const attack = latest(async () => {
  if (state.network.segments) return;
  if (drawing.isEmpty || !isAttacked()) {
    if (state.seen) showAttack(state.seen);
    return;
  }
  const against = document.querySelector("input[name=against]:checked").value;
  const found = await ask("attack", {
    ...message(), epsilon: Number($("epsilon").value), against: state.network.beside ? against : "capsules",
  });
  showAttack(found);
});

// Without a change the answers are those that are there.
const isAttacked = () => about.attacks && Number($("epsilon").value) > 0;

function showAttack(found) {
  showImages($("attacked"), [found.image]);
  const said = [`capsules say ${named(found.shown.map((each) => each.label), found.scores)}`];
  if (found.beside) said.push(`${state.network.beside} says ${named([best(found.beside)], found.beside)}`);
  $("attack-says").textContent = `${said.join("; ")}.`;
}

// What finds parts learned single digits.
const takesApart = () => about.parts && !state.network.pairs && !state.network.segments;

const takeApart = latest(async () => {
  if (drawing.isEmpty || !takesApart()) return;
  const found = await ask("take_apart", message());
  state.parts = drawing.isEmpty ? null : found.parts;
  moveApart();
});

const decode = latest(async () => {
  const { label } = state.seen.shown[state.which];
  const found = await ask("decode", { network: about.networks.indexOf(state.network), label, pose: state.pose });
  showImages($("posed"), [found.image]);
});

const best = (scores) => scores.indexOf(Math.max(...scores));
const named = (labels, scores) => labels.map((k) => `${state.network.classes[k]} (${say(scores[k])})`).join(" and ");

function showSeen() {
  const { seen, network } = state;
  const labels = seen.shown.map((each) => each.label);
  $("verdict").textContent = labels.map((k) => network.classes[k]).join(" and ");
  [...$("bars").children].forEach((row, k) => {
    const found = labels.indexOf(k);
    row.className = found < 0 ? "" : `found${found}`;
    row.querySelector(".bar").style.width = `${100 * seen.scores[k]}%`;
    row.querySelector(".value").textContent = say(seen.scores[k]);
    const beside = row.querySelector(".beside");
    beside.hidden = !seen.beside;
    if (seen.beside) beside.style.width = `${100 * seen.beside[k]}%`;
  });
  showImages($("input"), [seen.image]);
  const pictures = seen.shown.map((each) => each.image).filter(Boolean);
  if (pictures.length) showImages($("imagined"), pictures, { inColour: network.pairs });
  if (state.chosen === null || !labels.includes(state.chosen)) choose(labels[0]);
  if (!isAttacked()) showAttack(seen);
  setPose();
  showMoved();
  speak();
}

function blank() {
  $("verdict").textContent = "nothing yet";
  if (state.network.segments) blankMasks();
  for (const row of $("bars").children) {
    row.className = "";
    row.querySelector(".value").textContent = say(0);
    for (const bar of row.querySelectorAll(".bar, .beside")) bar.style.width = "0";
  }
  for (const name of ["input", "imagined", "votes", "posed", "attacked", "parts"]) $(name).getContext("2d").clearRect(0, 0, 999, 999);
  $("tree").replaceChildren();
  $("sliders").replaceChildren();
  for (const name of ["agreement", "moved", "attack-says"]) $(name).textContent = "";
  state.still = state.explained = state.pose = state.parts = null;
}

function moveApart() {
  if (state.parts) showParts($("parts"), state.parts, Number($("apart").value));
}

let speaking = 0;
function speak() {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const { seen, network } = state;
    if (seen && network.segments) $("live").textContent = `Found: ${masksInWords() || "background alone"}`;
    else if (seen) $("live").textContent = `Capsules say ${named(seen.shown.map((each) => each.label), seen.scores)}`;
  }, 700);
}

function choose(label) {
  state.chosen = label;
  $("chosen").textContent = state.network.classes[label];
  [...$("bars").children].forEach((row, k) => row.firstChild.setAttribute("aria-pressed", String(k === label)));
  if (state.network.segments) chooseMask(label);
  else showAgreement();
}

function showAgreement() {
  const { explained, network, chosen } = state;
  if (!explained || chosen === null) return;
  const slider = $("iteration");
  const n = explained.iterations.length;
  if (Number(slider.max) !== n) {
    slider.max = n;
    slider.value = n;
  }
  showValue(slider);
  const step = explained.iterations[Number(slider.value) - 1];
  showVotes($("votes"), explained.image, { extent: explained.extent, step, label: chosen });
  showTree($("tree"), explained.image, { step, classes: network.classes, shown: explained.labels, side: network.side });
  const [activity, given] = [step.activity.flat(), step.share[chosen].flat()];
  const whole = activity.reduce((a, b) => a + b, 0) || 1;
  const part = activity.reduce((sum, value, k) => sum + value * given[k], 0) / whole;
  const percent = (value) => `${Math.round(100 * value)} %`;
  $("agreement").textContent = `After ${slider.value} of ${n}: ${network.classes[chosen]} gets ${percent(part)} of all `
    + `activity (an even share is ${percent(1 / network.classes.length)}); its ${network.logits ? "probability" : "length"} is ${say(step.scores[chosen])}.`;
}

// Sliders for the pose of the first digit that was found, or of the chosen one of two.
function setPose() {
  const { seen } = state;
  state.which = Math.max(0, seen.shown.findIndex((each) => each.label === state.chosen));
  const found = seen.shown[state.which];
  if (!found?.image) return;
  state.pose = [...found.pose];
  const sliders = $("sliders");
  if (sliders.children.length !== state.pose.length) makeSliders(sliders, state.pose.length);
  [...sliders.querySelectorAll("input")].forEach((input, k) => {
    input.value = state.pose[k];
    showValue(input);
  });
  showImages($("posed"), [found.image]);
}

function makeSliders(place, n) {
  place.replaceChildren(...Array.from({ length: n }, (_, k) => {
    const row = slider(`pose-${k}`, `number ${k + 1}`, -1, 1, 0.01);
    row.querySelector("input").addEventListener("input", (event) => {
      state.pose[k] = Number(event.target.value);
      decode();
    });
    return row;
  }));
}

function slider(id, text, min, max, step) {
  const row = document.createElement("label");
  row.className = "slider";
  row.htmlFor = id;
  const input = Object.assign(document.createElement("input"), { type: "range", id, min, max, step });
  const output = document.createElement("output");
  output.setAttribute("for", id);
  row.append(Object.assign(document.createElement("span"), { textContent: text }), input, output);
  return row;
}

// A number is called by what it was measured to do to this reconstruction.
function nameSliders() {
  const { explained, seen, which } = state;
  const meanings = explained?.meanings[explained.labels.indexOf(seen.shown[which].label)] ?? [];
  [...$("sliders").children].forEach((row, k) => {
    const meaning = meanings[k];
    row.firstChild.textContent = meaning ? `${meaning.slice(1)} ${meaning[0]}` : `number ${k + 1}`;
  });
}

function showMoved() {
  const { seen, still } = state;
  const [now, then] = [seen.shown[0], still?.shown[0]];
  if (!then || MOVES.every((name) => Number($(name).value) === 0)) {
    $("moved").textContent = "The length says what it is, the pose how it stands.";
    return;
  }
  if (now.label !== then.label) {
    $("moved").textContent = `Now it is taken for ${state.network.classes[now.label]}.`;
    return;
  }
  const moved = Math.hypot(...now.pose.map((value, k) => value - then.pose[k]));
  const [before, after] = [then, now].map((each) => Math.hypot(...each.pose));
  $("moved").textContent = `Length ${say(before)} → ${say(after)}; the pose moved by ${say(moved)}.`;
}

function showValue(input) {
  if (input.closest(".toys, .layers")) return; // which say more themselves
  const output = document.querySelector(`output[for="${input.id}"]`);
  const value = Number(input.value);
  output.textContent = { rotate: `${value}°`, iteration: `${value} / ${input.max}`, brush: `${value}` }[input.id] ?? say(value);
}

function useNetwork(index) {
  const network = about.networks[index];
  Object.assign(state, { network, seen: null, explained: null, chosen: null, still: null, which: 0 });
  document.querySelector("main").toggleAttribute("data-segments", Boolean(network.segments));
  $("h-draw").textContent = network.segments ? "Draw, or load an image"
    : network.pairs ? "Draw two digits, one over the other" : "Draw a digit";
  $("who").textContent = network.segments ? "It finds" : "Capsules say";
  $("h-move").textContent = network.segments ? "Move the image" : "Move the digit";
  $("pens").hidden = !network.pairs;
  document.querySelector("input[name=pen]").checked = true;
  $("bars").replaceChildren(...network.classes.map((name, k) => {
    const row = document.createElement("li");
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.addEventListener("click", () => {
      choose(k);
      if (!state.seen || state.network.segments) return;
      setPose();
      nameSliders();
    });
    const part = (className, text = "") => Object.assign(document.createElement("span"), { className, textContent: text });
    const track = part("track");
    track.append(part("bar"), part("beside"));
    button.append(part("name", name), track, part("value", say(0)));
    row.append(button);
    return row;
  }));
  $("legend").textContent = network.segments ? LEGEND : `Bars are ${network.logits ? "probabilities" : "lengths of capsules"}.${network.beside ? ` Thin bars: ${network.beside}.` : ""}`;
  $("against").hidden = !network.beside;
  $("beside-name").textContent = network.beside ?? "";
  document.querySelector(".pose").hidden = !network.decodes;
  document.querySelector(".pictures").hidden = !network.decodes;
  document.querySelector(".parts").hidden = !takesApart();
  document.querySelector(".agree").hidden = network.segments;
  document.querySelector(".attack").hidden = !about.attacks || network.segments;
  document.querySelector(".masks").hidden = !network.segments;
  document.querySelector(".layers").hidden = !network.capsules;
  $("sample").hidden = !samples();
  $("ink").parentElement.hidden = !network.segments;
  if (network.segments) {
    startMasks(network, rows());
    choose(0);
    drawing.useColour(network.shape[1], network.shape[2]);
  } else drawing.usePens(network.pairs ? 2 : 1);
}

const LEGEND = "A class is where its score is above ½. Bars are the mean score there, with the part of the image; of a class "
  + "that is nowhere, the highest score. Choose one to see its map.";
const samples = () => (state.network.segments ? state.network.samples : about.samples);

async function takeSample() {
  if (state.network.segments) {
    await takePhoto();
    return;
  }
  const pens = state.network.pairs ? 2 : 1;
  const found = [];
  for (let tries = 0; found.length < pens && tries < 50; tries++) {
    const sample = await ask("sample", { seed: Math.floor(Math.random() * 2 ** 31) });
    if (!found.some((other) => other.label === sample.label)) found.push(sample);
  }
  for (const name of MOVES) resetSlider(name);
  drawing.steps = [];
  found.forEach((sample, pen) => {
    const offset = pens === 1 ? 0 : [-30, 30][pen];
    drawing.put(picture(fromBase64(sample.image)), pen, { x: offset, y: offset / 3, joined: pen === 0 && pens === 2, example: true });
  });
}

async function takePhoto() {
  const { network } = state;
  const asked = { network: about.networks.indexOf(network), seed: Math.floor(Math.random() * 2 ** 31) };
  const { image, masks } = await ask("sample", asked);
  if (network !== state.network) return; // another was chosen meanwhile
  for (const name of MOVES) resetSlider(name);
  drawing.steps = [];
  drawing.put(enlarged(photo(fromBase64(image), network.shape), drawing.factor), 0, { truth: masks });
}

// A file takes the place of what its pen drew; an image in colour that of all.
async function takeFile(file) {
  const { network } = state;
  if (network.segments) {
    const small = await photoOf(file, network.shape);
    drawing.steps = [];
    drawing.put(enlarged(small, drawing.factor), 0);
    return;
  }
  const found = await pictureOf(file);
  drawing.steps = drawing.steps.filter((step) => step.pen !== drawing.pen);
  drawing.put(found, drawing.pen);
}

function resetSlider(name) {
  $(name).value = 0;
  showValue($(name));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-pressed", String(theme === "dark"));
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
setTheme(prefersDark.matches ? "dark" : "light");
prefersDark.addEventListener("change", () => setTheme(prefersDark.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));

about.networks.forEach((network, k) => $("network").append(new Option(network.pairs ? `${network.name} (two digits)` : network.name, k)));
$("network").addEventListener("change", (event) => {
  drawing.steps = [];
  useNetwork(Number(event.target.value));
  if (samples()) guarded(takeSample)();
});
for (const pen of document.querySelectorAll("input[name=pen]")) pen.addEventListener("change", () => { drawing.pen = Number(pen.value); });
$("undo").addEventListener("click", () => drawing.undo());
$("clear").addEventListener("click", () => drawing.clear());
$("sample").addEventListener("click", guarded(takeSample));
$("file").addEventListener("change", guarded(async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (file) await takeFile(file);
}));
$("canvas").addEventListener("dragover", (event) => event.preventDefault());
$("canvas").addEventListener("drop", (event) => {
  event.preventDefault();
  const [file] = event.dataTransfer.files;
  if (file) guarded(() => takeFile(file))();
});
$("ink").addEventListener("input", (event) => { drawing.colour = event.target.value; });
$("opacity").addEventListener("input", showViews);
$("layer").addEventListener("input", showLayer);
$("brush").addEventListener("input", (event) => { drawing.brush = Number(event.target.value); });
for (const name of MOVES) $(name).addEventListener("input", changed);
$("move-reset").addEventListener("click", () => {
  for (const name of MOVES) resetSlider(name);
  changed();
});
$("pose-reset").addEventListener("click", () => { if (state.seen) setPose(); });
$("iteration").addEventListener("input", showAgreement);
$("apart").addEventListener("input", moveApart);
$("epsilon").addEventListener("input", attack);
$("against").addEventListener("change", attack);
document.addEventListener("input", (event) => { if (event.target.type === "range") showValue(event.target); });
for (const input of document.querySelectorAll("input[type=range]")) showValue(input);

function guarded(work) {
  return (event) => work(event).then(() => problem(""), (error) => problem(error.message));
}

// For those who drive the page: the same as "Test image" does, with a picture of their own.
window.playground = {
  put(found) {
    drawing.steps = [];
    drawing.put(found, 0);
  },
  inks: () => drawing.inks(about.canvas),
  pixels: (channels) => drawing.pixels(channels),
};

useNetwork(0);
if (samples()) await guarded(takeSample)();
if (about.toys) await startToys(about.toys, (error) => problem(error.message));
document.documentElement.dataset.ready = "yes";
