/** Runs steps on a `Sound` in a worker; answers with what came out of its port. */

import { Sound } from "/web/sound.js";

const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const text = (pcm) => {
  const raw = new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength);
  let chars = "";
  for (let at = 0; at < raw.length; at += 8192) chars += String.fromCharCode(...raw.subarray(at, at + 8192));
  return btoa(chars);
};

onmessage = ({ data: steps }) => {
  const { port1, port2 } = new MessageChannel();
  const posted = [];
  const failures = [];
  const done = () => {
    postMessage({ posted, failures, waitingMs: sound.waitingMs });
    close();
  };
  const sound = new Sound(port1, (id, why) => {
    failures.push([id, why]);
    done();
  });
  port2.onmessage = ({ data }) => {
    if (data.type === "over") return done();
    const kind = data.pcm?.constructor.name;
    posted.push(data.pcm === undefined ? data : { ...data, pcm: text(data.pcm), kind });
  };
  for (const [method, ...given] of steps) {
    if (method === "audio") {
      const [id, audio] = given;
      const payload = audio.codec === "pcm" ? bytes(audio.payload) : audio.payload.map(bytes);
      sound.audio(id, { first: 0, silence: false, reset: false, skip: 0, last: false, ...audio, payload });
    } else sound[method](...given);
  }
};
