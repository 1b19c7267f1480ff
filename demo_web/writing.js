/** Text that comes bit by bit: from fingers, or like a language model's. */

/**
 * How much of a field's text is sent, after it was changed. What was sent cannot be unsaid, so a change within it only moves the end.
 * @param {string} before @param {string} now  the field's text before and after the change
 * @param {number} sent  how much of `before` was sent @returns {number}  how much of `now` counts as sent
 */
export function sentAfter(before, now, sent) {
  let same = 0, after = 0;
  while (same < before.length && before[same] === now[same]) same++;
  if (same >= sent) return sent;
  while (after < Math.min(before.length, now.length) - same && before.at(-1 - after) === now.at(-1 - after)) after++;
  const within = after > 0 && before.length - after <= sent && 2 * (same + after) >= before.length;
  return within ? Math.max(same, sent + now.length - before.length) : same;
}

/** @param {string} text  not sent yet @returns {number}  how much of it is certain: all but a word that may go on */
export const certain = text => text.length - (/[^\s\p{Script=Han}\u3000-\u303f\uff00-\uff0f\uff1a-\uff20]*$/u.exec(text)?.[0].length ?? 0);

/** Sends what is typed into a field: words when they are finished, the last one after a moment, all of it at a new line. */
export class Typing {
  #seen = "";
  #sent = 0;
  #timer = 0;

  /** @param {HTMLTextAreaElement} field
   * @param {(text: string, flush: boolean) => boolean} send  returns whether it was taken; otherwise it is sent again with what comes next */
  constructor(field, send) {
    this.field = field;
    this.send = send;
  }

  /** @param {boolean} fresh  what is in the field is to be sent; otherwise it counts as sent */
  begin(fresh) {
    clearTimeout(this.#timer);
    this.#seen = this.field.value;
    this.#sent = fresh ? 0 : this.#seen.length;
  }

  /** The field has changed. */
  changed() {
    const now = this.field.value;
    this.#sent = sentAfter(this.#seen, now, this.#sent);
    this.#seen = now;
    const flush = now.length > this.#sent && now.endsWith("\n");
    this.#commit(flush ? now.length - this.#sent : certain(now.slice(this.#sent)), flush);
    this.#timer = setTimeout(() => this.rest(), 700);
  }

  /** Sends the unfinished word too. */
  rest() { this.#commit(this.#seen.length - this.#sent, false); }

  /** @param {number} length @param {boolean} flush */
  #commit(length, flush) {
    clearTimeout(this.#timer);
    if (!length) return;
    const text = this.#seen.slice(this.#sent, this.#sent + length);
    if (this.send(text, flush)) this.#sent += length;
  }
}

/** @param {string} text @param {number} at @returns {number}  moved on where it would cut a character in two */
export const wholeAt = (text, at) => /[\udc00-\udfff]/.test(text[at] ?? "") && /[\ud800-\udbff]/.test(text[at - 1] ?? "") ? at + 1 : at;

/**
 * Writes a text at so many characters a second, in pieces of a token's size.
 * @param {string} text @param {() => number} perSecond @param {(text: string) => void} write @param {() => void} end
 * @returns {() => void}  stops it
 */
export function asModel(text, perSecond, write, end) {
  let at = 0, owed = 1, before = performance.now();
  const timer = setInterval(() => {
    const now = performance.now();
    owed += (now - before) * perSecond() / 1000;
    before = now;
    if (owed < 2 && at + owed < text.length) return;
    const next = wholeAt(text, Math.min(text.length, at + Math.floor(owed)));
    owed -= next - at;
    write(text.slice(at, next));
    at = next;
    if (at < text.length) return;
    clearInterval(timer);
    end();
  }, 50);
  return () => clearInterval(timer);
}
