/** `speak(open, texts, where, rest)`: what a `Connection` gives a playout that plays at once, in a worker or in the page;
 * `rest` are texts that come after a failure. */

import { Connection } from "/web/connection.js";

const url = `ws://${location.host}/v1/stream`;

/** The port of a connection: messages of the page go in, those for it come out. */
function started(where) {
  if (where === "worker") return new Worker("/web/worker.js", { type: "module" });
  const { port1, port2 } = new MessageChannel();
  const connection = new Connection((message) => port1.postMessage(message));
  port1.onmessage = ({ data }) => connection.receive(data);
  return port2;
}

window.speak = (open, texts, where, rest) =>
  new Promise((resolve) => {
    const port = started(where);
    const { port1: playout, port2: playing } = new MessageChannel();
    const told = [];
    const heard = {};
    playing.onmessage = ({ data: { type, id, first, pcm, samples } }) => {
      if (type === "begin") heard[id] = { samples: [], kinds: [], complete: null };
      const utterance = heard[id];
      if (type === "audio") {
        if (first !== utterance.samples.length) told.push({ type: "wrong", first, at: utterance.samples.length });
        const kind = pcm.constructor.name;
        if (utterance.kinds.at(-1) !== kind) utterance.kinds.push(kind);
        for (const sample of pcm) utterance.samples.push(kind === "Int16Array" ? sample : Math.round(sample * 32768));
        const at = utterance.samples.length;
        playing.postMessage({ type: "played", id, sample: at, bufferedMs: 0, stalls: 0 });
      } else if (type === "complete") utterance.complete = samples;
      check();
    };
    let over = false;
    const check = () => {
      if (!over || Object.values(heard).some(({ complete }) => complete === null) || !heard[spoken]) return;
      port.postMessage({ type: "close" });
      resolve({ told, heard });
    };
    port.onmessage = ({ data }) => {
      told.push(data);
      if (data.type === "token") port.postMessage({ type: "token", request: data.request, token: null });
      const done = data.type === "event" && data.message.type === "done" && data.id === spoken;
      const failed = data.type === "state" && data.state === "failed";
      if (failed && rest.length > 0) say(rest.splice(0));
      else if (failed) resolve({ told, heard });
      else if (done && rest.length === 0) {
        over = true;
        check();
      }
    };
    port.postMessage({ type: "setup", url, playout }, [playout]);
    let spoken = 0;
    const say = (more) => {
      for (const text of more) {
        const id = ++spoken;
        port.postMessage({ type: "begin", id, open, start: {} });
        port.postMessage({ type: "write", id, text });
        port.postMessage({ type: "end", id });
      }
    };
    say(texts);
  });
