// Bytes as base64, in which messages carry images.

export function asBase64(bytes) {
  let text = "";
  // Without the limit on the number of arguments of one call.
  for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  return btoa(text);
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
