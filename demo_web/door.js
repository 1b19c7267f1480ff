/** Whether the server lets us in, and which voices it has then. Asks for a key where it needs one. */

import { byId, say, setText } from "./page.js";
import { failureKey } from "./texts.js";

const AGAIN_MS = 3000;

export class Door {
  /** @type {"starting"|"locked"|"away"|"open"} */
  state = "starting";
  /** @type {import("./access.js").Voice[]} */
  voices = [];
  engine = "";
  #why = "";
  #code = "";

  /** @param {import("./access.js").Access} access @param {import("./notice.js").Notice} notice
   * @param {() => void} changed  called after every change of what is above */
  constructor(access, notice, changed) {
    this.access = access;
    this.notice = notice;
    this.changed = changed;
    byId("key-form", HTMLFormElement).addEventListener("submit", event => {
      event.preventDefault();
      this.#try(byId("key", HTMLInputElement));
    });
    addEventListener("online", () => { if (this.state === "away") this.enter(); });
  }

  /** Asks for the voices: that tells. Where the server is away, again and again. */
  async enter() {
    try {
      ({ engine: this.engine, voices: this.voices } = await this.access.voices());
    } catch (problem) {
      const { code = "internal", retryAfterMs } = /** @type {import("./access.js").AccessError} */ (problem);
      if (code === "unauthorized") return this.lock(this.state === "starting" ? "" : "key.expired");
      this.#become("away");
      return this.notice.show(code, { retryAfterMs: retryAfterMs ?? AGAIN_MS, act: () => this.enter(), alone: true });
    }
    this.notice.clear();
    this.#become("open");
  }

  /** @param {string} why  a key of the texts, or nothing: a key is needed */
  lock(why) {
    this.#become("locked", why);
    byId("key", HTMLInputElement).focus();
  }

  /** The server did not let us speak. */
  async refused() {
    await this.enter();
    if (this.state === "open") this.notice.show("forbidden");
  }

  /** The words, in the language that is set. */
  translate() {
    byId("key-form", HTMLElement).hidden = this.state !== "locked";
    setText("key-problem", this.#why && say(this.#why, { code: this.#code }));
  }

  /** @param {typeof this.state} state */
  #become(state, why = "") {
    this.state = state;
    this.#why = why;
    this.translate();
    this.changed();
  }

  /** @param {HTMLInputElement} field  with the key */
  async #try(field) {
    const send = byId("key-send", HTMLButtonElement);
    setText("key-problem", "");
    send.disabled = true;  // Enter does nothing then, either
    try {
      await this.access.use(field.value.trim());
    } catch (problem) {
      const { code } = /** @type {import("./access.js").AccessError} */ (problem);
      this.#code = code;
      this.#why = code === "unauthorized" ? "key.wrong" : failureKey(code ?? "internal");
      this.translate();
      return field.select();
    } finally {
      send.disabled = false;
    }
    field.value = "";
    this.#become("starting");
    await this.enter();
    if (this.state === "open") byId("speak", HTMLElement).focus();
  }
}
