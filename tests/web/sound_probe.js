// Before the page's own scripts: where buffers are placed, a recorder of what the player gives out, browsers without
// worklets, and contexts that fail as those of iOS do. `soundProbe` says which: {scheduled, fake}.
(() => {
  window.starts = [];
  const worklet = Object.getOwnPropertyDescriptor(BaseAudioContext.prototype, "audioWorklet");
  const { start } = AudioBufferSourceNode.prototype;
  AudioBufferSourceNode.prototype.start = function (when, ...rest) {
    const { buffer, context } = this;
    starts.push({ when, now: context.currentTime, frames: buffer.length, rate: buffer.sampleRate, context: context.sampleRate });
    return start.call(this, when, ...rest);
  };
  if (soundProbe.scheduled) Object.defineProperty(BaseAudioContext.prototype, "audioWorklet", { value: undefined });

  function recorder() {
    registerProcessor("recorder", class extends AudioWorkletProcessor {
      process([[channel]]) {
        this.port.postMessage(channel ? Array.from(channel) : new Array(128).fill(0));
        return true;
      }
    });
  }

  /** From now on, all that passes `player.output`. */
  window.record = async () => {
    const { context, output } = player;
    window.recorded ??= [];
    const module = URL.createObjectURL(new Blob([`(${recorder})()`], { type: "text/javascript" }));
    await worklet.get.call(context).addModule(module);
    const node = new AudioWorkletNode(context, "recorder");
    node.port.onmessage = ({ data }) => recorded.push(...data);
    output.connect(node);
    node.connect(context.destination);
  };

  if (!soundProbe.fake) return;
  class FakeNode extends EventTarget {
    gain = { value: 1, setValueAtTime() {}, linearRampToValueAtTime() {}, cancelScheduledValues() {} };
    connect(to) { return to; }
    disconnect() {}
  }
  window.contexts = [];
  window.AudioContext = class extends EventTarget {
    sampleRate = 48000;
    destination = new FakeNode();
    resumes = [];
    starts = [];
    frozen = false;
    refuse = 0;
    #state = "suspended";
    #time = 0;
    #at = 0;
    constructor() { super(); contexts.push(this); }
    get state() { return this.#state; }
    get currentTime() { return this.#time + (this.#state === "running" && !this.frozen ? (performance.now() - this.#at) / 1000 : 0); }
    turn(state) {
      [this.#time, this.#at, this.#state] = [this.currentTime, performance.now(), state];
      this.onstatechange?.(new Event("statechange"));
    }
    async resume() {
      this.resumes.push(this.#state);
      if (this.refuse-- > 0) throw new DOMException("interrupted", "InvalidStateError");
      this.turn("running");
    }
    async close() { this.turn("closed"); }
    createGain() { return new FakeNode(); }
    createBuffer(_, length, sampleRate) {
      const data = new Float32Array(length);
      return { length, sampleRate, duration: length / sampleRate, getChannelData: () => data };
    }
    createBufferSource() {
      const node = new FakeNode();
      return Object.assign(node, { start: (when) => this.starts.push({ when, duration: node.buffer.duration }), stop() {} });
    }
  };
})();
