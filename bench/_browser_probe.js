// Runs in a page before its own scripts and writes down what they do, without knowing them: the events of the player
// (whatever object dispatches a CustomEvent and is no part of the document), when somebody pressed something, what is
// sent to the loudspeaker, tasks that take long. `probeSampleRate`: of every AudioContext, or null.
(() => {
  const probe = {
    events: [], // {kind, at, ...detail}
    player: null, // who dispatched the latest
    pressed: NaN, // ms, when the latest click or key press happened
    contexts: [],
    levels: [], // while it listens: [ms, peak of the latest 3 ms, peak of the latest 40 ms]
    longTasks: [], // [ms, duration]
    /** Look at what goes to the loudspeaker every few milliseconds. */
    listen() {
      probe.levels = [];
      timer ??= setInterval(look, 4);
    },
    /** How long after `since` anything was to be heard last; 0: nothing was. */
    lastSound(since) {
      const loud = probe.levels.filter(([at, latest]) => at >= since && latest > 1e-4);
      return loud.length ? loud.at(-1)[0] - since : 0;
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
  const samples = new Float32Array(2048);

  function look() {
    let latest = 0;
    let whole = 0;
    for (const tap of taps) {
      if (tap.context.state !== "running") continue;
      tap.getFloatTimeDomainData(samples);
      for (let at = 0; at < samples.length; at++) {
        const level = Math.abs(samples[at]);
        if (level > whole) whole = level;
        if (at >= samples.length - 128 && level > latest) latest = level;
      }
    }
    probe.levels.push([performance.now(), latest, whole]);
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
