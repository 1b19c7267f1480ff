/** What stands around the text: the state it is in, what browser and address lack, and the way to the server's status. */

import { byId, say, setText } from "./page.js";
import { TEXTS } from "./texts.js";

/** @type {Record<string, string>} */
const TONES = { idle: "good", speaking: "good", away: "bad", silent: "bad", locked: "warn", reconnecting: "warn", stalled: "warn" };

/** @param {string} state  of the texts' */
export function showState(state) {
  setText("state", say(`state.${state}`));
  byId("state", HTMLElement).className = `pill ${TONES[state] ?? "soft"} ${state}`;
}

/** Says what is missing. @param {{reasons: string[]}} support  the player's */
export function showSupport({ reasons }) {
  const missing = reasons.filter(each => `support.${each}` in TEXTS);
  const told = missing.includes("insecure_context") ? ["insecure_context"] : missing;
  byId("support", HTMLElement).hidden = !told.length;
  setText("support", told.map(each => say(`support.${each}`)).join(" "));
}

/** Leads to the server's status from its own machine: elsewhere a proxy may keep it to itself. */
export function showStatus() {
  byId("status", HTMLElement).hidden = !["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
}
