/** The last minute in two small lines, with marks for what happened. */

const SVG = "http://www.w3.org/2000/svg";
export const SPAN_MS = 60_000;
const LEFT = 10, RIGHT = 46, TOP = 24, HIGH = 62, SECOND = 124, HEIGHT = 214;

/** @typedef {{time: number, buffer: number, rate: number, burst?: boolean}} Point
 *   time: ms; buffer: s; rate: kbit/s; burst: the rate is the beginning's, and may stand above the chart's top */

/** @param {number} value @returns {number}  a round number that is not below it */
export function roundTop(value) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(value, 0.1)));
  return [1, 2, 5, 10].map(each => Number((each * unit).toPrecision(2))).find(each => each >= value) ?? value;
}

/** @param {Point[]} points @param {"buffer"|"rate"} name @param {number} least @returns {number}  how far its axis goes, `least` at least */
export const topOf = (points, name, least) =>
  roundTop(Math.max(least, ...points.map(each => name === "rate" && each.burst ? 0 : each[name])));

/**
 * @param {Point[]} points @param {"buffer"|"rate"} name @param {(time: number) => number} x @param {(value: number) => number} y
 * @returns {string}  an SVG path; where nothing was told for 1.5 s there is a gap
 */
export function pathOf(points, name, x, y) {
  let path = "", before = -Infinity;
  for (const point of points) {
    path += `${point.time - before > 1500 ? "M" : "L"}${x(point.time).toFixed(1)} ${y(point[name]).toFixed(1)}`;
    before = point.time;
  }
  return path;
}

/** @param {string} name @param {Record<string, string|number>} attributes @param {string} [text] */
function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== undefined) made.textContent = text;
  return made;
}

export class Chart {
  /** @type {Point[]} */
  points = [];
  /** @type {{time: number, kind: "mode"|"underrun"|"reconnect"}[]} */
  marks = [];

  /** @param {SVGElement} svg @param {(key: string, values?: Record<string, string|number>) => string} say */
  constructor(svg, say) {
    this.svg = svg;
    this.say = say;
    new ResizeObserver(() => this.draw(this.points.at(-1)?.time ?? performance.now())).observe(svg);
  }

  /** @param {number} now  what is older than a minute is dropped, the rest is drawn */
  draw(now) {
    while (this.points[0]?.time < now - SPAN_MS) this.points.shift();
    while (this.marks[0]?.time < now - SPAN_MS) this.marks.shift();
    const width = this.svg.clientWidth || 500, end = width - RIGHT;
    /** @param {number} time */
    const x = time => end - (end - LEFT) * (now - time) / SPAN_MS;
    const parts = [];
    for (const [name, top, key, least] of /** @type {["buffer"|"rate", number, string, number][]} */ ([
      ["buffer", TOP, "chart.buffer", 1], ["rate", SECOND, "chart.bitrate", 50]])) {
      const ceiling = topOf(this.points, name, least);
      parts.push(shape("text", { class: "name", x: LEFT, y: top - 8 }, this.say(key)));
      for (const share of [0, 1]) {
        const y = top + HIGH * (1 - share);
        parts.push(shape("path", { class: "grid", d: `M${LEFT} ${y}H${end}` }), shape("text", { x: end + 8, y: y + 4 }, `${share * ceiling}`));
      }
      const line = pathOf(this.points, name, x, value => top + HIGH * (1 - Math.min(value / ceiling, 1)));
      parts.push(shape("path", { class: name === "rate" ? "bitrate" : "buffer", d: line || "M0 0" }));
    }
    for (const seconds of [60, 30, 0])
      parts.push(shape("text", { x: x(now - seconds * 1000), y: HEIGHT - 6, "text-anchor": seconds === 60 ? "start" : seconds ? "middle" : "end" },
        seconds ? this.say("chart.ago", { n: seconds }) : this.say("chart.now")));
    for (const { time, kind } of this.marks) {
      const at = x(time), y = SECOND - (kind === "reconnect" ? 31 : 24);
      if (kind === "reconnect") parts.push(shape("circle", { class: "mark reconnect", cx: at, cy: y, r: 5 }));
      else parts.push(shape("path", { class: `mark ${kind}`, d: kind === "mode" ? `M${at} ${y - 6}l6 6-6 6-6-6z` : `M${at - 6} ${y - 5}h12l-6 11z` }));
    }
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren(...parts);
  }
}
