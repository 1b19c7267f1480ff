/**
 * The text while it is spoken. Positions are code points of the whole text, strings count UTF-16 units, and a long text must cost
 * nothing per word: it stands in blocks that are laid out apart, a segment is one element, and the word is a highlight, not an element.
 */

import { chars, offset } from "./wire.js";

const BLOCK = 1500, LONG = 20;

/** A growing text in blocks: each ends with a line, or where a line is very long, between words. */
export class TextMap {
  /** @type {{text: string, start: number, points: number}[]} */
  blocks = [];
  points = 0;

  /** @param {string} text @returns {{block: number, text: string}[]}  what goes to the end of which block */
  append(text) {
    const placed = [];
    for (let line of text.match(/[^\n]*\n|[^\n]+/g) ?? []) {
      while (line) {
        let last = this.blocks.at(-1);
        if (!last || last.text.endsWith("\n") || last.text.length >= BLOCK) {
          last = { text: "", start: this.points, points: 0 };
          this.blocks.push(last);
        }
        const piece = line.slice(0, cutOf(line, BLOCK - last.text.length));
        line = line.slice(piece.length);
        last.text += piece;
        const points = chars(piece);
        last.points += points;
        this.points += points;
        placed.push({ block: this.blocks.length - 1, text: piece });
      }
    }
    return placed;
  }

  /** @param {number} point @returns {{block: number, unit: number}}  the block that it is in, and where */
  locate(point) {
    let low = 0;
    for (let high = this.blocks.length - 1; low < high;) {
      const middle = (low + high + 1) >> 1;
      if (this.blocks[middle].start <= point) low = middle;
      else high = middle - 1;
    }
    const found = this.blocks[low];
    if (!found) return { block: 0, unit: 0 };
    return { block: low, unit: offset(found.text, point - found.start) };
  }
}

/** @param {string} line @param {number} room @returns {number}  how many units of it a block with this much room takes */
function cutOf(line, room) {
  if (line.length <= room) return line.length;
  const between = line.slice(room, room + 200).search(/[\s。！？，；.!?,;]/);
  const cut = room + (between < 0 ? 1 : between + 1);
  return /[\ud800-\udbff]/.test(line[cut - 1]) ? cut + 1 : cut;
}

/** @typedef {{element: HTMLElement, block: number, from: number}} Piece */

export class Reading {
  #map = new TextMap();
  /** @type {{node: Text, from: number}[]}  of each block: what is in no segment yet */
  #tails = [];
  /** @type {{start: number, end: number, pieces: Piece[]}[]} */
  #segments = [];
  #current = 0;
  #followed = 0;
  #touched = -1e9;
  #word = typeof Highlight === "function" ? new Highlight() : null;
  #heard = typeof Highlight === "function" ? new Highlight() : null;

  /** @param {HTMLElement} panel  where it is shown */
  constructor(panel) {
    this.panel = panel;
    if (this.#word && this.#heard) {
      CSS.highlights.set("heard", this.#heard);
      CSS.highlights.set("word", this.#word);
    }
    for (const kind of ["wheel", "touchmove", "keydown"])
      panel.addEventListener(kind, () => { this.#touched = performance.now(); }, { passive: true });
  }

  /** How many code points there are. */
  get points() { return this.#map.points; }

  /** Another text; @param {string} language  its `lang` */
  begin(language) {
    this.#map = new TextMap();
    this.#tails = [];
    this.#segments = [];
    this.#current = 0;
    this.#touched = -1e9;
    this.#mark(null);
    this.panel.replaceChildren();
    this.panel.classList.remove("stopped", "long");
    this.panel.lang = language;
  }

  /** @param {string} text  goes to the end */
  append(text) {
    const made = document.createDocumentFragment();
    for (const { block, text: piece } of this.#map.append(text)) {
      if (this.#tails[block]) {
        this.#tails[block].node.appendData(piece);
        continue;
      }
      const node = document.createTextNode(piece);
      const element = document.createElement("div");
      element.append(node);
      made.append(element);
      this.#tails[block] = { node, from: 0 };
    }
    this.panel.append(made);
    this.panel.classList.toggle("long", this.#tails.length > LONG);
  }

  /** Text [start, end) is one segment. Those that are told again are passed over. @param {number} start @param {number} end */
  segment(start, end) {
    start = Math.max(start, this.#segments.at(-1)?.end ?? 0);
    end = Math.min(end, this.points);
    if (end <= start) return;
    const last = this.#map.locate(end - 1).block;
    const pieces = [];
    for (let block = this.#map.locate(start).block; block <= last; block++) {
      const tail = this.#tails[block];
      const units = (block < last ? this.#map.blocks[block].text.length : this.#map.locate(end - 1).unit + 1) - tail.from;
      const cut = /[\ud800-\udbff]/.test(tail.node.data[units - 1] ?? "") ? units + 1 : units;
      const element = document.createElement("span"), spoken = tail.node;
      tail.node = spoken.splitText(cut);
      tail.node.before(element);
      element.append(spoken);  // the node itself, or it would count as text that jumps
      pieces.push({ element, block, from: tail.from });
      tail.from += cut;
    }
    this.#segments.push({ start, end, pieces });
  }

  /** The word [start, end) is heard now. @param {number} start @param {number} end */
  word(start, end) {
    this.#pass(start);
    const segment = this.#segments[this.#current];
    const from = this.#place(start), to = this.#place(Math.max(end - 1, start), true);
    if (!segment || !from || !to) return;
    for (const { element } of segment.pieces) element.classList.add("now");
    const range = rangeOf(from, to);
    this.#mark(range, rangeOf({ node: /** @type {Node} */ (segment.pieces[0].element.firstChild), offset: 0 }, from));
    this.#follow(range);
  }

  /** It was heard to its end. */
  finish() {
    this.#pass(Infinity);
    this.#mark(null);
  }

  /** It was stopped; the text before `end` was heard. @param {number} end */
  stop(end) {
    this.#pass(end);
    this.#mark(null);
    this.panel.classList.add("stopped");
    const segment = this.#segments[this.#current];
    if (!segment) return;
    for (const { element } of segment.pieces) element.classList.remove("now");
    if (segment.start >= end) return;
    const last = this.#map.locate(end - 1).block;
    for (const { element, block } of segment.pieces.filter(each => each.block <= last)) {
      const place = block === last ? this.#place(end - 1, true) : null;
      if (place && element.firstChild === place.node) {
        const rest = /** @type {Text} */ (place.node).splitText(place.offset);
        const after = document.createElement("span");
        after.append(rest);
        element.after(after);
      }
      element.classList.add("heard");
    }
  }

  /** Segments that end at or before this position were heard. @param {number} point */
  #pass(point) {
    for (; this.#segments[this.#current]?.end <= point; this.#current++)
      for (const { element } of this.#segments[this.#current].pieces) element.className = "heard";
  }

  /** @param {number} point @param {boolean} [after]  the place behind this code point @returns {{node: Node, offset: number} | null} */
  #place(point, after = false) {
    const { block, unit } = this.#map.locate(point);
    const segment = this.#segments.slice(this.#current, this.#current + 2).find(each => each.start <= point && point < each.end);
    const piece = segment?.pieces.find(each => each.block === block);
    const node = piece?.element.firstChild;
    if (!piece || !node) return null;
    const length = after ? /[\ud800-\udbff]/.test(this.#map.blocks[block].text[unit]) ? 2 : 1 : 0;
    return { node, offset: Math.min(unit - piece.from + length, node.nodeValue?.length ?? 0) };
  }

  /** @param {Range | null} word @param {Range | null} [heard] */
  #mark(word, heard = null) {
    this.#word?.clear();
    this.#heard?.clear();
    if (word) this.#word?.add(word);
    if (heard) this.#heard?.add(heard);
  }

  /** Keeps the word in view, unless the reader has just scrolled. @param {Range} range */
  #follow(range) {
    const now = performance.now();
    if (now - this.#followed < 250 || now - this.#touched < 4000) return;
    this.#followed = now;
    const word = range.getBoundingClientRect(), panel = this.panel.getBoundingClientRect();
    if (word.top > panel.top + 10 && word.bottom < panel.top + panel.height * 0.75) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.panel.scrollBy({ top: word.top - panel.top - panel.height * 0.3, behavior: calm ? "auto" : "smooth" });
  }
}

/** @param {{node: Node, offset: number}} from @param {{node: Node, offset: number}} to */
function rangeOf(from, to) {
  const range = document.createRange();
  range.setStart(from.node, from.offset);
  range.setEnd(to.node, to.offset);
  return range;
}
