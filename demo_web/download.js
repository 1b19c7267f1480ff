/** A text as a file: `POST /v1/speak`, read as it comes. */

import { AccessError, refusal } from "./access.js";

export const MAX_CHARACTERS = 100_000;
const SPILL = 4 << 20;

/**
 * A WAV stream's header says no length: give it the true ones.
 * @param {Uint8Array} head  the file's beginning, header and all @param {number} total  bytes of the whole file
 * @returns {Uint8Array<ArrayBuffer>}  a copy. Throws AccessError `download` where it is no WAV header.
 */
export function trueLengths(head, total) {
  const copy = new Uint8Array(head), view = new DataView(copy.buffer);
  /** @param {number} at */
  const tag = at => String.fromCharCode(...copy.subarray(at, at + 4));
  if (copy.length < 44 || tag(0) !== "RIFF" || tag(8) !== "WAVE") throw new AccessError("download");
  view.setUint32(4, Math.min(total - 8, 0xffffffff), true);
  for (let at = 12; at + 8 <= copy.length; at += 8 + view.getUint32(at + 4, true)) {
    if (tag(at) !== "data") continue;
    view.setUint32(at + 4, Math.min(total - at - 8, 0xffffffff), true);
    return copy;
  }
  throw new AccessError("download");
}

/**
 * @param {URL} url  of `/v1/speak`
 * @param {{text: string, format: "wav"|"opus", voice?: string, speed?: number}} asked
 * @param {string | null} token
 * @param {(bytes: number) => void} progress  how many came so far
 * @param {AbortSignal} signal  makes it throw its reason
 * @returns {Promise<Blob>}  the whole file. Throws AccessError.
 */
export async function download(url, asked, token, progress, signal) {
  const answer = await fetch(url, {
    method: "POST", body: JSON.stringify(asked), signal,
    headers: { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) },
  }).catch(() => { signal.throwIfAborted(); throw new AccessError("unreachable"); });
  if (!answer.ok) throw refusal(answer, await answer.json().catch(() => null));
  /** @type {BlobPart[]} */
  let waiting = [];
  /** @type {Blob[]} */
  const parts = [];
  /** @type {Uint8Array} */
  let head = new Uint8Array(0);
  let total = 0, held = 0;
  const reader = answer.body?.getReader();
  try {
    for (;;) {
      const { value, done } = await reader?.read() ?? { done: true, value: undefined };
      if (done) break;
      total += value.length;
      if (head.length < 44) {
        const joined = new Uint8Array(head.length + value.length);
        joined.set(head);
        joined.set(value, head.length);
        head = joined;
      } else {
        waiting.push(value);
        held += value.length;
        // A Blob's bytes are the browser's to keep, on disk where there are many.
        if (held > SPILL) { parts.push(new Blob(waiting)); waiting = []; held = 0; }
      }
      progress(total);
    }
  } catch {
    signal.throwIfAborted();
    throw new AccessError("download");
  }
  const first = asked.format === "wav" ? trueLengths(head, total) : new Uint8Array(head);
  // Firefox takes `.opus` from a file whose type is audio, and gives it another ending.
  return new Blob([first, ...parts, ...waiting], { type: asked.format === "wav" ? "audio/wav" : "application/octet-stream" });
}

/** @param {Blob} blob @param {string} name  of the file */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
