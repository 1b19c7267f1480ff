/**
 * The AudioContext and what becomes of it: refused until someone taps, interrupted by a call, running with a clock that
 * stands still or an audio thread that failed. Then another context is made, and what was not played is played there.
 * While nothing is to be heard for long, it rests.
 */

const SETTLE_MS = 400; // a browser that wants a tap first leaves `resume` open
const FROZEN_MS = 500;
const LOOK_MS = 100;
const AGAIN_MS = 1000;
const TRIES = 120;
const LONGEST_MS = 8000;
const REST_MS = 30000;
const BREAKS_MS = 10000; // an audio thread that fails twice within that fails of what it plays
// Firefox for Linux hangs, the whole page, where its latency is asked for while PulseAudio fetches sound. It is about this.
const HANGS = /Linux.* Firefox\//.test(navigator.userAgent), UNASKED_S = 0.04;
const TAPS = ["pointerdown", "pointerup", "keydown", "visibilitychange"]; // the last may do on iOS

/**
 * @typedef {{type: string, id: number, played: number, time: number, [field: string]: any}} Told a message of the
 *   worklet's port: its `type` says which fields
 * @typedef {import("./scheduled.js").Scheduled} Scheduled
 * @typedef {{told: (message: Told) => void, state: (state: string, needsTap: boolean) => void,
 *   lost: (message: string, portToo: boolean) => void, idle: () => boolean}} Ears `lost`: nothing of what is unfinished
 *   will be heard, nor anything that comes by the playout port (`portToo`); `idle`: nothing is unfinished
 */

export class Loudspeaker {
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
  #idleSince = 0;
  #resting = false; // it was suspended here, by nobody else
  #replacing = false;
  /** @type {AudioContext | null} its audio thread failed */
  #broken = null;
  #brokeAt = -Infinity;
  #closed = false;

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
    if (HANGS) return UNASKED_S;
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
    if (this.context || this.#closed) return;
    const Context = globalThis.AudioContext ?? /** @type {any} */ (globalThis).webkitAudioContext; // old Safari's name
    try {
      if (!Context) throw new Error("this browser has no Web Audio");
      const context = /** @type {AudioContext} */ (new Context({ latencyHint: "interactive" }));
      this.output = context.createGain();
      this.output.connect(context.destination);
      this.context = context;
      context.onstatechange = () => this.#look(context);
      this.#seen = { time: -1, at: performance.now() };
      this.#connect(context, this.output).catch((error) => this.#giveUp(context, String(error)));
    } catch (error) {
      const { message } = /** @type {Error} */ (error);
      queueMicrotask(() => this.#ears.lost(message, false)); // whoever asks for it has then got what will fail
    }
  }

  /** Who speaks next tries again, with what is unsent. @param {AudioContext} context @param {string} why */
  #giveUp(context, why) {
    if (context !== this.context) return;
    this.context = this.output = context.onstatechange = null;
    Promise.resolve(context.close()).catch(() => {});
    this.#ears.lost(why, false);
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
        node.onprocessorerror = () => {
          this.#broken = context;
          this.#look(context);
        };
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
    if (this.#closed) return;
    if (!this.#wanted) for (const kind of TAPS) document.addEventListener(kind, this.#tapped, true);
    this.#wanted = true;
    this.#idleSince = performance.now();
    this.#timer ||= setInterval(() => this.#look(this.context), LOOK_MS);
    this.prepare();
    const context = this.context;
    if (!context || (context.state === "running" && !this.#resting)) return;
    const late = new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    await Promise.race([Promise.resolve(context.resume()).catch(() => {}), late]);
    if (context !== this.context) return;
    if (this.#resting) this.#seen = { time: -1, at: performance.now() };
    this.#resting = false;
    this.#refused = !this.running;
    this.#look(context);
  }

  #tapped = () => {
    if ((this.context || this.#replacing) && !this.running && !this.#resting) this.unlock();
  };

  /** @param {AudioContext | null} context */
  #look(context) {
    if (!context || context !== this.context || !this.#wanted) return;
    const state = /** @type {string} */ (context.state); // `interrupted` is not in all types
    const now = performance.now();
    if (this.#resting) return this.#say(state, false);
    if (state === "running") [this.#sounded, this.#refused] = [true, false];
    else if (this.#sounded) [this.#sounded, this.#refused] = [false, true];
    if (state !== "running" || context.currentTime !== this.#seen.time) {
      if (state === "running" && this.#seen.time >= 0) this.#patience = FROZEN_MS;
      this.#seen = { time: context.currentTime, at: now };
    }
    if (state === "interrupted" || (state === "suspended" && context.currentTime > 0)) this.#refused = true;
    this.#say(state, state !== "running" && this.#refused);
    if (!this.#ears.idle()) this.#idleSince = now;
    if (state === "closed" || context === this.#broken || now - this.#seen.at >= this.#patience) this.#replace(context);
    else if (now - this.#idleSince >= REST_MS) this.#rest(context);
  }

  /** @param {string} state @param {boolean} needsTap */
  #say(state, needsTap) {
    if (state + needsTap === this.#said) return;
    this.#said = state + needsTap;
    this.#ears.state(state, needsTap);
  }

  /** @param {AudioContext} context */
  #rest(context) {
    clearInterval(this.#timer);
    this.#timer = 0;
    if (!this.running) return;
    this.#resting = true;
    this.#sounded = false;
    Promise.resolve(context.suspend()).catch(() => {});
  }

  /** Whether this failure is one too many. @param {AudioContext} old */
  #hopeless(old) {
    if (old !== this.#broken) {
      const long = this.#patience === LONGEST_MS;
      this.#patience = Math.min(2 * this.#patience, LONGEST_MS);
      if (this.#patience >= 8 * FROZEN_MS && !this.#ears.idle()) this.#ears.lost("the clock of the sound stands still", false);
      return long; // it may run again some day: who speaks next tries
    }
    const again = performance.now() - this.#brokeAt < BREAKS_MS;
    this.#brokeAt = performance.now();
    if (again) this.#ears.lost("the audio thread failed", false);
    return again;
  }

  /** @param {AudioContext} old */
  async #replace(old) {
    if (this.#replacing) return;
    this.#replacing = true;
    const hopeless = this.#hopeless(old);
    const sink = this.#sink;
    let answered = true;
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
      answered = data !== null;
      if (data?.port) this.#first({ ...data, type: "port" }, [data.port]);
    }
    Promise.resolve(old.close()).catch(() => {});
    this.#replacing = false;
    if (this.#closed) return;
    if (!answered) this.#ears.lost("the audio thread does not answer", true);
    if (!hopeless || !this.#ears.idle()) this.unlock();
  }

  /**
   * Before all that is unsent, unless someone tapped and there is a sink again.
   * @param {object} message @param {Transferable[]} transfer
   */
  #first(message, transfer) {
    if (this.#sink) this.post(message, transfer);
    else this.#unsent.unshift({ message, transfer });
  }

  close() {
    this.#closed = true;
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
