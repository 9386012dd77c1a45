// Ask a worker of this page, in which the networks run; it answers what the server would.

const worker = new Worker("worker.js", { type: "module" });
const waiting = new Map();
let last = 0;

worker.addEventListener("message", ({ data: { id, answer, error } }) => {
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (error === undefined) resolve(answer);
  else reject(new Error(error));
});

worker.addEventListener("error", (event) => {
  for (const { reject } of waiting.values()) reject(new Error(event.message || "The page's worker could not be loaded."));
  waiting.clear();
});

export function ask(name, message) {
  return new Promise((resolve, reject) => {
    last += 1;
    waiting.set(last, { resolve, reject });
    worker.postMessage({ id: last, name, message });
  });
}
