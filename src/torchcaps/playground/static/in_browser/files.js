// Fetch a file that lies beside the page.

export async function load(name) {
  let response;
  try {
    response = await fetch(name);
  } catch {
    throw new Error(`The page's file ${name} could not be reached.`);
  }
  if (!response.ok) throw new Error(`The page's file ${name} is not there (${response.status}).`);
  return response;
}
