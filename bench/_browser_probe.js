// Runs in a page before its own scripts and writes down what they do, without knowing them: the events of the player
// (whatever object dispatches a CustomEvent and is no part of the document), when somebody pressed something, what is
// sent to the loudspeaker, tasks that take long. `probeSampleRate`: of every AudioContext, or null.
(() => {
  const probe = {
    events: [], // {kind, at, ...detail}
    player: null, // who dispatched the latest
    pressed: NaN, // ms, when the latest click or key press happened
    contexts: [],
    levels: [], // while it listens: [ms when the loudspeaker gives the last loud sample that is known, latest peak]
    longTasks: [], // [ms, duration]
    /** Look at what goes to the loudspeaker every few milliseconds. */
    listen() {
      probe.levels = [];
      timer ??= setInterval(look, 4);
    },
    /** How long after `since` the loudspeaker gives the last sound, ms; 0: none. */
    lastSound(since) {
      return Math.max(0, ...probe.levels.map(([heard]) => heard - since));
    },
    /** Be a tab that nobody sees. */
    hide() {
      Object.defineProperty(document, "visibilityState", { configurable: true, value: "hidden" });
      Object.defineProperty(document, "hidden", { configurable: true, value: true });
      document.dispatchEvent(new Event("visibilitychange"));
    },
  };
  window.probe = probe;
  let timer = null;
  const taps = [];
  const samples = new Float32Array(8192); // more than passes between two looks, also where the page is busy

  function look() {
    let peak = 0;
    let heard = -Infinity;
    for (const tap of taps) {
      const { context } = tap;
      if (context.state !== "running") continue;
      tap.getFloatTimeDomainData(samples);
      const end = context.currentTime; // read after them: too late rather than too early
      for (const level of samples.subarray(-128)) peak = Math.max(peak, Math.abs(level));
      const last = samples.findLastIndex((level) => Math.abs(level) > 1e-4);
      if (last >= 0) heard = Math.max(heard, given(context, end - (samples.length - 1 - last) / context.sampleRate));
    }
    probe.levels.push([heard, peak]);
  }

  /** When the loudspeaker gives what was rendered for this time of the context, ms of the page's clock. */
  function given(context, time) {
    const { contextTime, performanceTime } = context.getOutputTimestamp();
    if (performanceTime > 0) return performanceTime + (time - contextTime) * 1000;
    return performance.now() + (time - context.currentTime + context.outputLatency) * 1000; // it gave nothing yet
  }

  const { dispatchEvent } = EventTarget.prototype;
  EventTarget.prototype.dispatchEvent = function (event) {
    if (event instanceof CustomEvent && !(this instanceof Node) && this !== window) {
      probe.player = this;
      probe.events.push({ ...event.detail, kind: event.type, at: performance.now() });
    }
    return dispatchEvent.call(this, event);
  };

  for (const kind of ["click", "keydown"]) {
    addEventListener(kind, (event) => { probe.pressed = event.timeStamp; }, { capture: true, passive: true });
  }

  const Context = window.AudioContext;
  window.AudioContext = class AudioContext extends Context {
    constructor(options = {}) {
      super(probeSampleRate === null ? options : { ...options, sampleRate: probeSampleRate });
      probe.contexts.push(this);
    }
  };

  const { connect } = AudioNode.prototype;
  AudioNode.prototype.connect = function (to, ...rest) {
    if (to === this.context.destination) {
      const tap = this.context.createAnalyser();
      tap.fftSize = samples.length;
      connect.call(this, tap);
      taps.push(tap);
    }
    return connect.call(this, to, ...rest);
  };

  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) probe.longTasks.push([entry.startTime, entry.duration]);
  }).observe({ type: "longtask", buffered: true });

  document.addEventListener("securitypolicyviolation", (event) => {
    console.error(`content security policy: ${event.violatedDirective} ${event.blockedURI}`);
  });
})();
