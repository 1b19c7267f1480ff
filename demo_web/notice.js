/** What went wrong, in words, with what can be done about it and when. Said once: the countdown beside it is not read out. */

import { byId, number, say, setText } from "./page.js";
import { failureKey } from "./texts.js";

export class Notice {
  #timer = 0;
  /** @type {{code: string, values: Record<string, string|number>, until: number, label: string, act: (() => void) | null} | null} */
  #shown = null;

  constructor() {
    byId("again", HTMLButtonElement).addEventListener("click", () => {
      const act = this.#shown?.act;
      this.clear();
      act?.();
    });
  }

  /** The code of what is shown. */
  get code() { return this.#shown?.code ?? null; }

  /**
   * @param {string} code  of the failure
   * @param {{retryAfterMs?: number | null, values?: Record<string, string|number>, label?: string, act?: (() => void) | null, alone?: boolean}} [more]
   *   `act`: what the button does, whose text is the key `label`; `alone`: it is done by itself when the time has come
   */
  show(code, { retryAfterMs = null, values = {}, label = "again", act = null, alone = false } = {}) {
    clearInterval(this.#timer);
    const until = performance.now() + (retryAfterMs ?? 0);
    this.#shown = { code, values: { code, ...values }, until, label, act };
    setText("failure-wait", "");
    this.translate();
    if (!retryAfterMs) return;
    this.#timer = setInterval(() => {
      this.#count();
      if (performance.now() < until) return;
      clearInterval(this.#timer);
      if (alone) act?.();  // it stays until that has an end: what is written anew is read out anew
    }, 250);
  }

  /** @param {string[]} codes  only where one of these is shown; none: whatever it is */
  clear(...codes) {
    if (codes.length && !codes.includes(this.#shown?.code ?? "")) return;
    clearInterval(this.#timer);
    this.#shown = null;
    this.translate();
  }

  /** Shows it in the language that is set. */
  translate() {
    const shown = this.#shown, button = byId("again", HTMLButtonElement);
    if (!shown?.act && document.activeElement === button) {  // which goes
      const speak = byId("speak", HTMLButtonElement);
      (speak.disabled ? byId("text", HTMLElement) : speak).focus();
    }
    byId("failure", HTMLElement).hidden = !shown;
    byId("hint", HTMLElement).hidden = Boolean(shown);
    setText("failure-text", shown ? say(failureKey(shown.code), shown.values) : "");
    button.hidden = !shown?.act;
    if (shown) setText("again", say(shown.label));
    this.#count();
  }

  #count() {
    const left = this.#shown ? Math.ceil((this.#shown.until - performance.now()) / 1000) : 0;
    const over = this.#shown !== null && byId("failure-wait", HTMLElement).textContent !== "";
    setText("failure-wait", left > 0 ? say("again.in", { n: number(left) }) : over ? say("again.now") : "");
  }
}
