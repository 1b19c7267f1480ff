/** The download buttons: one file at a time, how far it is, and Cancel. */

import { MAX_CHARACTERS, download, save } from "./download.js";
import { byId, number, say, setText, size } from "./page.js";
import { chars } from "./wire.js";

const EVERY_MS = 300, WAV_BYTES_A_SECOND = 48_000;

export class Downloads {
  #open = false;
  /** @type {AbortController | null} */
  #running = null;
  #said = () => "";
  /** How far it is: not read out. */
  #figure = () => "";

  /** @param {import("./access.js").Access} access @param {import("./notice.js").Notice} notice */
  constructor(access, notice) {
    this.access = access;
    this.notice = notice;
  }

  /** @param {() => {text: string, voice?: string, speed?: number}} asked  what is to be said
   * @param {() => void} refused  called where the server does not let us in */
  bind(asked, refused) {
    for (const format of /** @type {("wav"|"opus")[]} */ (["wav", "opus"]))
      byId(`download-${format}`, HTMLElement).addEventListener("click", () => this.#start({ ...asked(), format }, refused));
    byId("download-cancel", HTMLElement).addEventListener("click", event => {
      if (event.detail <= 1) this.#running?.abort();  // otherwise a double click, on the button that was here before
    });
  }

  /** @param {boolean} open  the server lets us in */
  enable(open) {
    this.#open = open;
    this.translate();
  }

  /** Shows how far it is, in the language that is set. */
  translate() {
    for (const format of ["wav", "opus"]) {
      const button = byId(`download-${format}`, HTMLButtonElement);
      button.disabled = !this.#open;
      button.hidden = this.#running !== null;
    }
    byId("download-cancel", HTMLElement).hidden = this.#running === null;
    setText("download-state", this.#said());
    setText("download-figure", this.#figure());
  }

  /** @param {{text: string, format: "wav"|"opus", voice?: string, speed?: number}} asked @param {() => void} refused */
  async #start(asked, refused) {
    if (this.#running) return;
    const characters = chars(asked.text);
    this.#said = () => "";
    this.translate();
    if (!asked.text.trim()) return this.notice.show("empty");
    if (characters > MAX_CHARACTERS) return this.notice.show("download_limit", { values: { n: number(characters) } });
    this.notice.clear();
    this.#running = new AbortController();
    let bytes = 0;
    this.#said = () => say("download.begun");
    this.#figure = () => asked.format === "wav" ? say("download.busy", { s: number(bytes / WAV_BYTES_A_SECOND), size: size(bytes) })
      : say("download.size", { size: size(bytes) });
    this.translate();
    byId("download-cancel", HTMLElement).focus();
    const timer = setInterval(() => setText("download-figure", this.#figure()), EVERY_MS);
    try {
      const url = new URL("v1/speak", this.access.base);
      const { signal } = this.#running;
      const file = await this.access.withToken(token => download(url, asked, token, all => { bytes = all; }, signal));
      save(file, asked.format === "wav" ? "cosystream.wav" : "cosystream.opus");
      this.#said = () => say("download.done", { size: size(file.size) });
    } catch (problem) {
      const { code, retryAfterMs } = /** @type {import("./access.js").AccessError} */ (problem);
      if (this.#running.signal.aborted) this.#said = () => say("download.cancelled");
      else {
        this.#said = () => "";
        if (code === "unauthorized") refused();
        else this.notice.show(typeof code === "string" ? code : "download", { retryAfterMs });
      }
    } finally {
      clearInterval(timer);
      this.#figure = () => "";
      const back = document.activeElement === byId("download-cancel", HTMLElement);
      this.#running = null;
      this.translate();
      if (back) byId(`download-${asked.format}`, HTMLElement).focus();
    }
  }
}
