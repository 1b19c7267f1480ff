// Stands for the player's worker: what it plays comes in pieces at random times. A text is its own instruction, JSON:
// {pieces, ms, apart: [least, most], hz, rate, seed}; `hold`: no piece comes before so many ms. What it was told by the
// page comes back as warnings.

let port = null;
const over = new Set();
const texts = new Map();

onmessage = ({ data }) => {
  const { type, id } = data;
  if (type === "setup") port = data.playout;
  if (type === "write") texts.set(id, data.text);
  if (type === "end" && texts.has(id)) speak(id, JSON.parse(texts.get(id)));
  if (type === "cancel") over.add(id);
  if (type === "cancel" || type === "begin") {
    postMessage({ type: "warning", code: type, message: JSON.stringify(data) });
  }
  if (port) port.onmessage = (event) => postMessage({ type: "warning", code: "played", message: JSON.stringify(event.data) });
};

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function speak(id, { pieces, ms, apart = [0, 0], hz = 440, rate = 24000, seed = 1, hold = 0 }) {
  port.postMessage({ type: "begin", id, rate, maxPrerollMs: 3000 });
  await wait(hold);
  const length = Math.round((rate * ms) / 1000);
  for (let piece = 0, at = performance.now(); piece < pieces; piece++) {
    const first = piece * length;
    const pcm = Int16Array.from({ length }, (_, i) => Math.round(8192 * Math.sin((2 * Math.PI * hz * (first + i)) / rate)));
    const words = [{ text: "x", start: piece, end: piece + 1, first_sample: first, end_sample: first + length }];
    const timing = { type: "timing", event: piece + 1, utterance: id, segment: 0, words };
    postMessage({ type: "event", id, message: timing });
    port.postMessage({ type: "audio", id, first, pcm }, [pcm.buffer]); // also of one that is over: it may be on its way
    seed = (seed * 48271) % 2147483647;
    at += apart[0] + (seed / 2147483647) * (apart[1] - apart[0]);
    await wait(Math.max(0, at - performance.now()));
  }
  if (over.has(id)) return;
  port.postMessage({ type: "complete", id, samples: pieces * length });
  postMessage({ type: "verified", id, samples: pieces * length, digest: "" });
}
