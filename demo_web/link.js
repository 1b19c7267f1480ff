/** One session with its WebSockets and its timer: executes what `Session` asks for. */

import { Session } from "./session.js";

const SUBPROTOCOL = "cosystream.v1";
const TOKEN_PREFIX = "cosystream.token.";
const MOST_TOKEN = 8_000; // characters; with more, no server reads the handshake, nor can it say so
const LOST = 4000; // close code: the server keeps the session
const REFUSALS = ["unauthorized", "forbidden"]; // what else keeps a token from a session that was open may pass
const PAGE_LATE_MS = 1500; // a hidden page's timers run once a second; a Worker's do not wait

/**
 * @typedef {import("./session.js").Effect} Effect
 * @typedef {{code: string, message: string, retryable: boolean, retryAfterMs?: number | null}} Problem
 * @typedef {{url: string, token: () => Promise<string | null>, used: () => void,
 *   line: import("./rough_line.js").Line}} Network `token` rejects with a `Problem`; `used`: a connection was made with it
 */

/** @param {string} message @param {boolean} retryable @returns {Problem} */
const unreachable = (message, retryable) => ({ code: "unreachable", message, retryable });

export class Link {
  state = "connecting";
  /** Utterances of the page by the session's number. @type {Map<number, import("./connection.js").Entry>} */
  entries = new Map();
  #network;
  #effect;
  /** By the session's numbers; null while a token is awaited. @type {Map<number, WebSocket | null>} */
  #sockets = new Map();
  #timer = 0;
  #closed = false;

  /** @param {Record<string, unknown>} open fields of `open` @param {Network} network
   * @param {(link: Link, effect: Effect) => void} effect takes what is not for sockets */
  constructor(open, network, effect) {
    this.open = open;
    this.session = new Session(open, "document" in globalThis ? { lateTickMs: PAGE_LATE_MS } : {});
    this.#network = network;
    this.#effect = effect;
  }

  /** Executes these in order. @param {Effect[]} effects */
  do(effects) {
    let at = 0;
    try {
      while (at < effects.length && !this.#closed) this.#execute(effects[at++]);
    } finally {
      if (at < effects.length && !this.#closed) this.do(effects.slice(at)); // one that threw keeps no other from its turn
      this.#arm();
    }
  }

  /** @param {Effect} effect */
  #execute(effect) {
    if (effect.type === "connect") this.#connect(effect.connection);
    else if (effect.type === "send") this.#send(effect.connection, effect.data);
    else if (effect.type === "drop") this.#drop(effect.connection, effect.code);
    else this.#effect(this, effect);
  }

  /** Every connection breaks. */
  cut() {
    for (const [connection, socket] of [...this.#sockets]) {
      if (socket === null || !this.#sockets.has(connection)) continue;
      this.#drop(connection, LOST);
      this.do(this.session.closed(connection, 1006, "", performance.now()));
    }
  }

  /** Ends the session, on the server too. */
  close() {
    if (this.#closed) return;
    this.do(this.session.close(performance.now()));
    this.#closed = true;
    clearTimeout(this.#timer);
    for (const connection of [...this.#sockets.keys()]) this.#drop(connection, 1000);
  }

  #arm() {
    clearTimeout(this.#timer);
    const due = this.session.deadline;
    if (this.#closed || due === null) return;
    const timer = setTimeout(() => this.do(this.session.tick(performance.now())), Math.max(0, due - performance.now()));
    this.#timer = Number(timer); // an object in Node
  }

  /** @param {number} connection */
  async #connect(connection) {
    this.#sockets.set(connection, null);
    const { url, token, used, line } = this.#network;
    const now = () => performance.now();
    let socket;
    try {
      const given = await token().catch((/** @type {Problem} */ problem) => {
        throw { ...problem, retryable: problem.retryable || (this.session.opened && !REFUSALS.includes(problem.code)) };
      });
      if (!this.#sockets.has(connection)) return;
      if (given && given.length > MOST_TOKEN) {
        throw { code: "unauthorized", message: "the token is too long to be one", retryable: false };
      }
      socket = new WebSocket(url, given === null ? [SUBPROTOCOL] : [SUBPROTOCOL, TOKEN_PREFIX + given]);
    } catch (error) {
      // The browser refuses the address or the token's characters, or the page gave no token.
      return this.#refused(connection, error instanceof Error ? unreachable(error.message, false) : error);
    }
    socket.binaryType = "arraybuffer";
    this.#sockets.set(connection, socket);
    /** @param {number} bytes @param {() => void} act */
    const arrives = (bytes, act) =>
      line.pass("down", bytes, () => {
        if (this.#sockets.get(connection) === socket) act();
      });
    let opened = false;
    socket.onopen = () =>
      arrives(0, () => {
        opened = true;
        used();
        if (socket.protocol === SUBPROTOCOL) return this.do(this.session.connected(connection, now()));
        this.#drop(connection, LOST);
        this.#refused(connection, unreachable("no CosyStream server answers there", false));
      });
    socket.onmessage = ({ data }) =>
      arrives(data.length ?? data.byteLength, () => {
        if (typeof data === "string") this.do(this.session.text(connection, data, now()));
        else this.do(this.session.binary(connection, new Uint8Array(data), now()));
      });
    socket.onclose = ({ code, reason }) =>
      arrives(0, () => {
        this.#sockets.delete(connection);
        if (opened) this.do(this.session.closed(connection, code, reason, now()));
        else this.#refused(connection, unreachable("the WebSocket could not be opened", true));
      });
  }

  /** @param {number} connection @param {any} problem a `Problem`; what is thrown has no type */
  #refused(connection, problem) {
    this.#sockets.delete(connection);
    this.do(this.#closed ? [] : this.session.refused(connection, problem, performance.now()));
  }

  /** @param {number} connection @param {string} data */
  #send(connection, data) {
    const socket = this.#sockets.get(connection);
    this.#network.line.pass("up", data.length, () => {
      if (socket?.readyState === WebSocket.OPEN) socket.send(data);
    });
  }

  /** @param {number} connection @param {number} code */
  #drop(connection, code) {
    const socket = this.#sockets.get(connection);
    this.#sockets.delete(connection);
    socket?.close(code);
  }
}
