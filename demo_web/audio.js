/**
 * The AudioContext and what becomes of it: refused until someone taps, interrupted by a call, running with a clock that
 * stands still. Then another context is made, and what was not played is played there.
 */

const SETTLE_MS = 400; // a browser that wants a tap first leaves `resume` open
const FROZEN_MS = 500;
const LOOK_MS = 100;
const AGAIN_MS = 1000;
const TRIES = 120;
const LONGEST_MS = 8000;
const TAPS = ["pointerdown", "pointerup", "keydown", "visibilitychange"]; // the last may do on iOS

/**
 * @typedef {{type: string, id: number, played: number, time: number, [field: string]: any}} Told a message of the
 *   worklet's port: its `type` says which fields
 * @typedef {import("./scheduled.js").Scheduled} Scheduled
 * @typedef {{told: (message: Told) => void, state: (state: string, needsTap: boolean) => void,
 *   lost: (message: string) => void}} Ears
 */

export class Audio {
  /** @type {AudioContext | null} */
  context = null;
  /** @type {GainNode | null} all sound passes here */
  output = null;
  /** @type {MessagePort | Scheduled | null} null: not ready yet */
  #sink = null;
  /** @type {{message: object, transfer: Transferable[]}[]} for the sink */
  #unsent = [];
  #prerollMs;
  #worklet;
  #ears;
  #wanted = false; // someone tapped to hear something
  #sounded = false; // it ran when it was looked at last
  #refused = false; // it was not let run, or no longer
  #said = "";
  #timer = 0;
  #seen = { time: -1, at: 0 };
  #patience = FROZEN_MS;

  /** @param {Ears} ears @param {number} prerollMs @param {string} worklet its address */
  constructor(ears, prerollMs, worklet) {
    this.#ears = ears;
    this.#prerollMs = prerollMs;
    this.#worklet = worklet;
  }

  get running() {
    return this.context?.state === "running";
  }

  /** Seconds from the context's clock to the ear. */
  get latency() {
    return this.context?.outputLatency || this.context?.baseLatency || 0;
  }

  /** Milliseconds from now until what sounds at `time` (of the context) is heard. @param {number} time */
  until(time) {
    return this.context ? (time - this.context.currentTime + this.latency) * 1000 : 0;
  }

  /** @param {object} message @param {Transferable[]} [transfer] to the worklet's port */
  post(message, transfer = []) {
    const sink = /** @type {MessagePort | null} */ (this.#sink); // as far as this goes
    if (sink) sink.postMessage(message, transfer);
    else this.#unsent.push({ message, transfer });
  }

  /** @param {number} ms */
  preroll(ms) {
    this.#prerollMs = ms;
    this.post({ type: "preroll", ms });
  }

  /** Makes everything, but for the permission to sound. */
  prepare() {
    if (this.context) return;
    const Context = globalThis.AudioContext ?? /** @type {any} */ (globalThis).webkitAudioContext; // old Safari's name
    if (!Context) return this.#ears.lost("this browser has no Web Audio");
    const context = /** @type {AudioContext} */ (new Context({ latencyHint: "interactive" }));
    this.context = context;
    this.output = context.createGain();
    this.output.connect(context.destination);
    context.onstatechange = () => this.#look(context);
    this.#seen = { time: -1, at: performance.now() };
    this.#connect(context, this.output).catch((error) => this.#ears.lost(String(error)));
  }

  /** @param {AudioContext} context @param {AudioNode} output */
  async #connect(context, output) {
    /** @type {MessagePort | Scheduled | null} */
    let sink = null;
    for (let tries = 0; !sink && context === this.context; tries++) {
      sink = await this.#load(context, output, tries ? `?${tries}` : "").catch((error) => {
        if (tries >= TRIES) throw error;
        return null; // the server is away, and its files with it
      });
      if (!sink) await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
    if (!sink || context !== this.context) return;
    sink.onmessage = (/** @type {{data: any}} */ { data }) => this.#ears.told(data); // either one's
    this.#sink = sink;
    this.post({ type: "preroll", ms: this.#prerollMs });
    for (const { message, transfer } of this.#unsent.splice(0)) this.post(message, transfer);
  }

  /**
   * @param {AudioContext} context
   * @param {AudioNode} output
   * @param {string} query another one each time: browsers remember that a module could not be loaded
   * @returns {Promise<MessagePort | Scheduled>}
   */
  async #load(context, output, query) {
    try {
      if (context.audioWorklet) {
        await context.audioWorklet.addModule(this.#worklet + query);
        const options = { numberOfInputs: 0, outputChannelCount: [1] };
        const node = new AudioWorkletNode(context, "cosystream-playout", options);
        node.onprocessorerror = () => this.#ears.lost("the audio thread failed");
        node.connect(output);
        return node.port;
      }
    } catch {
      // A page that forbids the module: as in browsers without worklets.
    }
    const { Scheduled } = await import(`./scheduled.js${query}`);
    return new Scheduled(context, output);
  }

  /** In a tap: may sound from now on. Resolves when it does, or when it is clear that it may not. */
  async unlock() {
    if (!this.#wanted) {
      this.#wanted = true;
      for (const kind of TAPS) document.addEventListener(kind, this.#tapped, true);
      this.#timer = setInterval(() => this.#look(this.context), LOOK_MS);
    }
    this.prepare();
    const context = this.context;
    if (!context || context.state === "running") return;
    const late = new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    await Promise.race([Promise.resolve(context.resume()).catch(() => {}), late]);
    this.#refused = context === this.context && !this.running;
    this.#look(context);
  }

  #tapped = () => {
    if (!this.running) this.unlock();
  };

  /** @param {AudioContext | null} context */
  #look(context) {
    if (!context || context !== this.context || !this.#wanted) return;
    const state = /** @type {string} */ (context.state); // `interrupted` is not in all types
    const now = performance.now();
    if (state === "running") [this.#sounded, this.#refused] = [true, false];
    else if (this.#sounded) [this.#sounded, this.#refused] = [false, true];
    if (state !== "running" || context.currentTime !== this.#seen.time) {
      if (state === "running" && this.#seen.time >= 0) this.#patience = FROZEN_MS;
      this.#seen = { time: context.currentTime, at: now };
    }
    if (state === "interrupted" || (state === "suspended" && context.currentTime > 0)) this.#refused = true;
    const needsTap = state !== "running" && this.#refused;
    if (state + needsTap !== this.#said) {
      this.#said = state + needsTap;
      this.#ears.state(state, needsTap);
    }
    if (state === "closed" || now - this.#seen.at >= this.#patience) this.#replace(context);
  }

  /** @param {AudioContext} old */
  async #replace(old) {
    const sink = this.#sink;
    this.#patience = Math.min(2 * this.#patience, LONGEST_MS);
    if (this.#patience === 8 * FROZEN_MS) this.#ears.lost("the clock of the sound stands still");
    this.#sink = null;
    this.context = null;
    this.#ears.state((this.#said = "frozen"), false);
    old.onstatechange = null;
    if (sink) {
      const left = new Promise((resolve) => {
        setTimeout(() => resolve(null), FROZEN_MS);
        sink.onmessage = (/** @type {{data: any}} */ { data }) => {
          if (data.type === "left") resolve(data);
          else this.#ears.told(data);
        };
      });
      sink.postMessage({ type: "leave" });
      const data = await left;
      if (data) this.#unsent.unshift({ message: { ...data, type: "port" }, transfer: [data.port] });
      else this.#ears.lost("the audio thread does not answer");
    }
    Promise.resolve(old.close()).catch(() => {});
    this.unlock();
  }

  close() {
    clearInterval(this.#timer);
    for (const kind of TAPS) document.removeEventListener(kind, this.#tapped, true);
    const context = this.context;
    this.context = this.#sink = null;
    if (!context) return;
    context.onstatechange = null;
    Promise.resolve(context.close()).catch(() => {});
    this.#ears.state("closed", false);
  }
}
