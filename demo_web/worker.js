/** Runs a `Connection` in a dedicated Worker, where a hidden tab's timers and messages keep going. */

import { Connection } from "./connection.js";

// The types are a window's; in a dedicated worker the global is the port to the page.
const page = /** @type {MessagePort} */ (/** @type {unknown} */ (globalThis));
const connection = new Connection((message) => page.postMessage(message));
page.onmessage = ({ data }) => connection.receive(data);
