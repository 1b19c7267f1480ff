/** The connection of a player: in a Worker, or in the page where none can be made. */

/** @typedef {Record<string, any>} Message its `type` says which fields */

export class Backstage {
  worker = true; // whether there is one
  #setup;
  /** @type {((message: Message, transfer: Transferable[]) => void) | null} null: the page's own is being loaded */
  #send = null;
  /** @type {Message[] | null} that the Worker was sent before it said anything; it may yet turn out not to run */
  #sent = [];
  /** @type {Map<string, Message>} by their types: what holds until the next one, also for another Worker */
  #lasting = new Map();
  /** @type {Worker | null} */
  #worker = null;
  #gone = false; // neither could be loaded: the server is away
  #closed = false;

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
      if (this.#sent) return void this.#here();
      this.renew();
      this.#fail("no_worker", event.message);
    };
    this.worker = true;
    this.#begin();
  }

  /** @param {string} code @param {string} message */
  #fail(code, message) {
    this.#setup.heard({ type: "failure", code, message, retryable: true });
  }

  #begin() {
    const { port1, port2 } = new MessageChannel();
    this.#setup.port(port2);
    this.#send?.({ type: "setup", url: this.#setup.url, playout: port1 }, [port1]);
    for (const message of [...this.#lasting.values(), ...(this.#sent ?? [])]) this.#send?.(message, []);
  }

  /** Another one, which knows of nothing, with another playout port: this one failed, or nothing hears its port. */
  renew() {
    if (this.#closed || !this.#send) return;
    if (!this.#worker) this.#send({ type: "close" }, []);
    this.#end();
    this.#sent = [];
    this.#open();
  }

  #end() {
    if (this.#worker) this.#worker.onmessage = this.#worker.onerror = null;
    this.#worker?.terminate();
    this.#worker = this.#send = null;
  }

  /** Runs the connection in the page. */
  async #here() {
    this.#end();
    this.worker = false;
    let loaded;
    try {
      loaded = await import(new URL("./connection.js", this.#setup.workerUrl).href);
    } catch (error) {
      this.#sent = [];
      this.#gone = true;
      return this.#fail("unreachable", String(error));
    }
    if (this.#closed) return;
    const connection = new loaded.Connection((/** @type {Message} */ message) => this.#setup.heard(message));
    this.#send = (message) => connection.receive(message);
    this.#begin();
    this.#sent = null;
  }

  /** @param {Message} message */
  post(message) {
    const { type } = message;
    const lasts = type === "visible" || type === "rough";
    if (lasts) this.#lasting.set(type, message);
    if (this.#closed || (this.#gone && type !== "begin")) return;
    if (!lasts) this.#sent?.push(message);
    this.#send?.(message, []);
    if (!this.#gone) return;
    this.#gone = false;
    this.#open();
  }

  close() {
    this.post({ type: "close" });
    this.#closed = true;
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
    const address = URL.createObjectURL(new Blob([`import ${JSON.stringify(url)};`], { type: "text/javascript" }));
    const worker = new Worker(address, { type: "module" });
    for (const kind of ["message", "error"]) {
      worker.addEventListener(kind, () => URL.revokeObjectURL(address), { once: true });
    }
    return worker;
  } catch {
    return null;
  }
}
