// Ask the server; a refusal becomes an Error with the server's reason. in_browser/api.js asks a worker instead.

export async function ask(name, message) {
  const response = await reach(`api/${name}`, message === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(message),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function reach(address, options) {
  try {
    return await fetch(address, options);
  } catch {
    throw new Error("The playground's server has stopped.");
  }
}
