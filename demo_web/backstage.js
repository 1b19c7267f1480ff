/** The connection of a player: in a Worker, or in the page where none can be made. */

/** @typedef {Record<string, any>} Message its `type` says which fields */

export class Backstage {
  worker = true; // whether there is one
  #setup;
  /** @type {((message: Message, transfer: Transferable[]) => void) | null} null: the page's own is being loaded */
  #send = null;
  /** @type {Message[] | null} that the Worker was sent before it said anything; it may yet turn out not to run */
  #sent = [];
  /** @type {Worker | null} */
  #worker = null;
  #gone = false; // neither could be loaded: the server is away

  /**
   * @param {{url: string, workerUrl: string, port: (port: MessagePort) => void,
   *   heard: (message: Message) => void}} setup `port`: takes the playout port
   */
  constructor(setup) {
    this.#setup = setup;
    this.#open();
  }

  #open() {
    const worker = (this.#worker = start(this.#setup.workerUrl));
    if (worker) this.#listen(worker);
    else this.#here();
  }

  /** @param {Worker} worker */
  #listen(worker) {
    this.#send = (message, transfer) => worker.postMessage(message, transfer);
    worker.onmessage = ({ data }) => {
      this.#sent = null;
      this.#setup.heard(data);
    };
    worker.onerror = (event) => {
      event.preventDefault();
      if (this.#sent) this.#here();
      else this.#fail("no_worker", event.message);
    };
    this.worker = true;
    this.#begin();
    for (const message of this.#sent ?? []) this.#send(message, []);
  }

  /** @param {string} code @param {string} message */
  #fail(code, message) {
    this.#setup.heard({ type: "failure", code, message, retryable: true });
  }

  #begin() {
    const { port1, port2 } = new MessageChannel();
    this.#setup.port(port2);
    this.#send?.({ type: "setup", url: this.#setup.url, playout: port1 }, [port1]);
  }

  /** Runs the connection in the page. */
  async #here() {
    this.#worker?.terminate();
    this.#worker = this.#send = null;
    this.worker = false;
    const module = new URL("./connection.js", this.#setup.workerUrl).href;
    const { Connection } = await import(module).catch((error) => (this.#fail("unreachable", String(error)), {}));
    if (!Connection) {
      this.#sent = (this.#sent ?? []).filter(({ type }) => type === "visible" || type === "rough");
      this.#gone = true;
      return;
    }
    const connection = new Connection((/** @type {Message} */ message) => this.#setup.heard(message));
    this.#send = (message) => connection.receive(message);
    this.#begin();
    for (const message of this.#sent ?? []) this.#send(message, []);
    this.#sent = null;
  }

  /** @param {Message} message */
  post(message) {
    this.#sent?.push(message);
    this.#send?.(message, []);
    if (!this.#gone || message.type !== "begin") return;
    this.#gone = false;
    this.#open();
  }

  close() {
    this.post({ type: "close" });
    const worker = this.#worker;
    setTimeout(() => worker?.terminate(), 1000); // time to say good-bye
  }
}

/** @param {string} url @returns {Worker | null} */
function start(url) {
  try {
    return new Worker(url, { type: "module" });
  } catch {
    // Another origin's: a Worker of this one may import it.
  }
  try {
    const blob = new Blob([`import ${JSON.stringify(url)};`], { type: "text/javascript" });
    return new Worker(URL.createObjectURL(blob), { type: "module" });
  } catch {
    return null;
  }
}
