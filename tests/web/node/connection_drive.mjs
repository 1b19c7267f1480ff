/**
 * Runs `Connection` with a playout that plays `argv[2]` times as fast as people hear. Lines of JSON: page messages come
 * on stdin, what the page and the playout are told goes to stdout. {"type":"digests","id","parts":[[first,count],...]}
 * on stdin asks for SHA-256 of what reached the playout, {"type":"hold","on"} keeps it from playing.
 */

import { createHash } from "node:crypto";
import { createInterface } from "node:readline";

import { Connection } from "../../../demo_web/connection.js";

const speed = Number(process.argv[2]);
const tell = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);
const { port1, port2 } = new MessageChannel();
const utterances = new Map();
let held = false;

function joined(utterance) {
  const all = new Int16Array(utterance.received);
  for (const { first, pcm } of utterance.parts) all.set(pcm, first);
  return all;
}

function restart(utterance, first) {
  if (first > utterance.received) return tell({ type: "wrong", what: "a restart beyond the end" });
  utterance.parts = utterance.parts
    .filter((part) => part.first < first)
    .map((part) => ({ first: part.first, pcm: part.pcm.subarray(0, first - part.first) }));
  utterance.received = first;
}

port2.onmessage = ({ data }) => {
  const { type, id } = data;
  if (type === "begin") utterances.set(id, { rate: data.rate, parts: [], received: 0, played: 0, samples: null, told: -1 });
  const utterance = utterances.get(id);
  if (utterance === undefined) return tell({ type: "wrong", what: `${type} before begin` });
  if (utterance.samples !== null) return tell({ type: "wrong", what: `${type} after complete` });
  if (type === "audio") {
    if (data.first !== utterance.received) tell({ type: "wrong", what: `${data.first} after ${utterance.received}` });
    if (!(data.pcm instanceof Int16Array)) tell({ type: "wrong", what: "no Int16Array" });
    utterance.parts.push({ first: data.first, pcm: data.pcm });
    utterance.received += data.pcm.length;
  } else if (type === "restart") restart(utterance, data.first);
  else if (type === "complete") utterance.samples = data.samples;
  tell({ playout: true, ...data, pcm: undefined, count: data.pcm?.length });
};

let last = performance.now();
const playing = setInterval(() => {
  const now = performance.now();
  let ms = held ? 0 : (now - last) * speed;
  last = now;
  for (const [id, utterance] of utterances) {
    const { rate, received, played } = utterance;
    utterance.played = Math.min(received, played + Math.floor((ms * rate) / 1000));
    ms -= ((utterance.played - played) * 1000) / rate;
    if (utterance.told === utterance.played) continue;
    utterance.told = utterance.played;
    const bufferedMs = ((received - utterance.played) * 1000) / rate;
    port2.postMessage({ type: "played", id, sample: utterance.played, bufferedMs, stalls: 0 });
    tell({ playout: true, type: "played", id, sample: utterance.played });
  }
}, 20);

const connection = new Connection(tell);
for await (const line of createInterface({ input: process.stdin })) {
  const message = JSON.parse(line);
  if (message.type === "setup") connection.receive({ ...message, playout: port1 });
  else if (message.type === "hold") held = message.on;
  else if (message.type === "digests") {
    const utterance = utterances.get(message.id);
    const all = joined(utterance);
    const digests = message.parts.map(([first, count]) =>
      createHash("sha256").update(new Uint8Array(all.buffer, first * 2, count * 2)).digest("hex"),
    );
    tell({ type: "digests", id: message.id, digests, samples: utterance.received, played: utterance.played });
  } else connection.receive(message);
}
clearInterval(playing);
connection.receive({ type: "close" });
port2.close();
process.exit(); // a socket on a dead line waits long for the other side's close frame
