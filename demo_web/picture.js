/** The sound's level as it plays: bars that move to the left; where motion is unwelcome, one bar that grows and shrinks. */

const BAR_MS = 50, BAR = 3, STEP = 5;

export class Picture {
  #levels = new Float32Array(400);
  #taken = 0;
  #since = 0;
  #frame = 0;
  #playing = false;
  #inView = true;
  /** @type {AnalyserNode | null} */
  #analyser = null;
  /** @type {Float32Array<ArrayBuffer>} */
  #samples = new Float32Array(2048);
  #calm = matchMedia("(prefers-reduced-motion: reduce)");

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    const again = () => this.#run();
    new IntersectionObserver(([entry]) => { this.#inView = entry.isIntersecting; again(); }).observe(canvas);
    new ResizeObserver(() => this.#draw(performance.now())).observe(canvas);
    document.addEventListener("visibilitychange", again);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw(performance.now()));
  }

  /** @param {AudioNode} output  what is heard */
  listen(output) {
    if (this.#analyser?.context === output.context) return;
    this.#analyser = output.context.createAnalyser();
    this.#analyser.fftSize = this.#samples.length;
    output.connect(this.#analyser);
  }

  /** @param {boolean} playing  otherwise nothing is drawn and nothing is asked for */
  play(playing) {
    this.#playing = playing;
    this.#run();
  }

  #run() {
    const wanted = this.#playing && this.#inView && !document.hidden;
    if (wanted === Boolean(this.#frame)) return;
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (!wanted && this.#calm.matches) {
      this.#levels.fill(0);
      this.#draw(0);
    }
    if (!wanted) return;
    this.#since = performance.now();
    /** @param {number} now */
    const step = now => {
      this.#frame = requestAnimationFrame(step);
      const due = Math.min(Math.floor((now - this.#since) / BAR_MS), 4);
      if (!due && this.#calm.matches) return;
      if (due) {
        this.#since = Math.max(this.#since + due * BAR_MS, now - BAR_MS);
        const level = this.#level();
        for (let each = 0; each < due; each++) this.#levels[this.#taken++ % this.#levels.length] = level;
      }
      if (!this.#calm.matches || this.#taken % 5 === 0) this.#draw(now);
    };
    this.#frame = requestAnimationFrame(step);
  }

  #level() {
    if (!this.#analyser) return 0;
    this.#analyser.getFloatTimeDomainData(this.#samples);
    let sum = 0;
    for (const sample of this.#samples) sum += sample * sample;
    const decibels = 10 * Math.log10(sum / this.#samples.length + 1e-9);
    return Math.max(0, Math.min(1, (decibels + 50) / 40));
  }

  /** @param {number} now */
  #draw(now) {
    const { canvas } = this, context = canvas.getContext("2d");
    const scale = Math.min(devicePixelRatio, 2), width = canvas.clientWidth, height = canvas.clientHeight;
    if (!context || !width) return;
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.fillStyle = getComputedStyle(canvas).color;
    /** @param {number} back */
    const level = back => this.#levels[(this.#taken - 1 - back + this.#levels.length * 4) % this.#levels.length];
    context.beginPath();
    if (this.#calm.matches) {
      context.roundRect(14, height / 2 - 5, Math.max(10, (width - 28) * level(0)), 10, 5);
    } else {
      const moved = this.#frame ? Math.min((now - this.#since) / BAR_MS, 1) * STEP : 0;
      for (let back = 0; back < this.#levels.length && (back + 1) * STEP < width - 12; back++) {
        const tall = Math.max(BAR, level(back) * (height - 16));
        context.roundRect(width - 12 - back * STEP - moved, (height - tall) / 2, BAR, tall, BAR / 2);
      }
    }
    context.fill();
  }
}
