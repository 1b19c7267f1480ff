/**
 * A player without a server, for tests of the page alone: the same events in the same order, a hum in place of speech.
 * Texts that begin with "!CODE " fail with this code, "!tap " is silent until there is a tap; `?insecure` is a browser that lacks everything.
 * `patient`: nothing comes to its end; `deaf`: taps do not help. `told` keeps what was written, of each utterance.
 */

const CHARACTER_MS = 60;
const bare = location.search.includes("insecure");

class FakeUtterance {
  constructor(player, id) {
    Object.assign(this, { player, id, text: "", ended: false, at: 0, cut: 0, segments: 0 });
    this.finished = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.finished.catch(() => {});
  }
  write(text) { this.text += text; this.player.told[this.id - 1].push(text); this.#cut(false); }
  flush() { this.#cut(true); }
  end() { this.ended = true; this.#cut(true); }
  #cut(all) {
    const points = [...this.text];
    for (let at = this.cut; at < points.length; at++) {
      if (!/[，。！？,.!?\n]/.test(points[at]) && !(all && at === points.length - 1)) continue;
      let end = at + 1;
      while (points[end] === " ") end++;
      this.player.tell("event", { id: this.id, message: { type: "segment_begin", utterance: this.id, segment: this.segments++, start: this.cut, end } });
      this.cut = end;
      at = end - 1;
    }
  }
}

export class Player extends EventTarget {
  support = { worklet: !bare, opus: !bare, worker: true, secure: !bare, reasons: bare ? ["insecure_context", "no_worklet", "no_webcodecs"] : [] };
  output = null;
  context = null;
  settings = {};
  told = [];
  patient = false;
  deaf = false;
  #utterance = null;
  #count = 0;
  #totals = { reconnects: 0, stalls: 0, bytes: 0 };
  #away = 0;

  constructor(options) { super(); this.options = options; globalThis.fakePlayer = this; }
  tell(type, detail) { this.dispatchEvent(new CustomEvent(type, { detail })); }
  set(settings) { Object.assign(this.settings, settings); }
  async unlock() {
    if (!this.context) {
      this.context = new AudioContext();
      this.output = this.context.createGain();
      this.output.gain.value = 0;
      const hum = this.context.createOscillator(), silent = this.context.createGain();
      silent.gain.value = 0;
      hum.connect(this.output).connect(silent).connect(this.context.destination);
      hum.start();
    }
    await this.context.resume();
    if (!this.deaf) this.tell("audio", { state: "running", needsTap: false });
  }
  speak(text) {
    this.unlock();
    const utterance = this.#utterance = new FakeUtterance(this, ++this.#count);
    this.told.push([]);
    const code = /^!(\w+) /.exec(text ?? "")?.[1];
    setTimeout(() => {
      if (code === "tap") return this.tell("audio", { state: "suspended", needsTap: true });
      if (code) {
        const problem = Object.assign(new Error(code), { code, retryable: code === "busy", retryAfterMs: code === "busy" ? 5000 : null });
        this.tell("failure", { code, message: code, retryable: problem.retryable, retryAfterMs: problem.retryAfterMs });
        return utterance.reject(problem);
      }
      this.tell("state", { state: "ready", reason: "", detail: null });
      this.tell("first", { id: utterance.id, ms: 87 });
      if (text !== undefined) { utterance.write(text); utterance.end(); }
      this.#play(utterance);
    }, 100);
    return utterance;
  }
  #play(utterance) {
    let told = false, heardTo = -1, ticks = 0;
    const timer = this.timer = setInterval(() => {
      if (utterance !== this.#utterance) return clearInterval(timer);
      const points = [...utterance.text], dry = utterance.at >= utterance.cut;
      const state = dry && !utterance.ended ? "waiting" : "playing";
      if (this.output) this.output.gain.value = state === "playing" ? 0.05 + 0.3 * Math.abs(Math.sin(ticks / 3) * Math.sin(ticks / 11)) : 0;
      if (state === "playing") {
        if (!told) { told = true; this.tell("audible", { id: utterance.id, ms: 142 }); }
        utterance.at += 50 / CHARACTER_MS;
        const at = Math.floor(utterance.at);
        if (at > heardTo && at < points.length && /[\p{L}\p{N}]/u.test(points[at])) {
          let start = at, end = at + 1;
          if (!/\p{Script=Han}/u.test(points[at])) {
            while (start > 0 && /[\w']/.test(points[start - 1])) start--;
            while (end < points.length && /[\w']/.test(points[end])) end++;
          }
          this.tell("word", { id: utterance.id, start, end, segment: 0 });
          heardTo = end - 1;
        }
      }
      this.#totals.bytes += this.#away ? 0 : 200;
      if (ticks++ % 2 === 0) this.tell("report", { id: utterance.id, state, bufferedMs: this.#away ? 900 : 2400 + 600 * Math.sin(ticks / 9), prerollMs: 120,
        received: Math.round(utterance.at * CHARACTER_MS * 24) + 50000, bytesPerSecond: this.#away ? 0 : 4000 + 900 * Math.sin(ticks / 5), codec: bare ? "pcm" : "opus",
        mode: this.#totals.reconnects ? "block" : "stream", modeReason: this.#totals.reconnects ? "resumed" : "", restarts: 0, ...this.#totals });
      if (this.patient || !utterance.ended || utterance.at < points.length) return;
      clearInterval(timer);
      this.#utterance = null;
      this.tell("ended", { id: utterance.id });
      utterance.resolve({ heardAll: true, samples: points.length * CHARACTER_MS * 24, verified: true });
    }, 50);
  }
  async stop() {
    const utterance = this.#utterance;
    if (!utterance) return null;
    this.#utterance = null;
    const stopped = { id: utterance.id, played: 0, heardTextEnd: Math.min(Math.floor(utterance.at), [...utterance.text].length) };
    this.tell("stopped", stopped);
    utterance.resolve({ heardAll: false, samples: 0, verified: false });
    return stopped;
  }
  cut() {
    this.tell("state", { state: "reconnecting", reason: "", detail: null });
    this.#away = 1;
    setTimeout(() => {
      this.#away = 0;
      this.#totals.reconnects++;
      this.tell("state", { state: "ready", reason: "", detail: null });
    }, 900);
  }
  rough(on) { this.tell("rough", { on }); }
  warm() {}
  close() {}
  clock() { return null; }
}
