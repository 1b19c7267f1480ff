/** The page's elements and its language. */

import { TEXTS, modeReason, phrase } from "./texts.js";

const REMEMBERED = "cosystream.language";

/** @template {Element} T @param {string} id @param {{new(): T}} kind @returns {T}  throws where there is none of this kind */
export function byId(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${id}`);
  return found;
}

/** @param {string} id @param {string} text  written only where it differs: live regions are read out, and nothing is laid out again */
export function setText(id, text) {
  const found = byId(id, HTMLElement);
  if (found.textContent !== text) found.textContent = text;
}

/** @param {string} id  of a button that stays pressed @returns {boolean}  whether it is now */
export function toggle(id) {
  const button = byId(id, HTMLElement), pressed = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(pressed));
  return pressed;
}

/** @type {import("./texts.js").Language} */
let language = remembered() ?? (navigator.language.startsWith("zh") ? "zh" : "en");

function remembered() {
  try {
    const kept = localStorage.getItem(REMEMBERED);
    return kept === "zh" || kept === "en" ? kept : null;
  } catch {
    return null;  // storage may be forbidden
  }
}

/** @param {string} key @param {Record<string, string|number>} [values] */
export const say = (key, values) => phrase(language, key, values);

/** @param {string} reason */
export const sayReason = reason => modeReason(language, reason);

/** @param {number} value @param {number} [digits] */
export const number = (value, digits = 0) =>
  value.toLocaleString(language, { maximumFractionDigits: digits, minimumFractionDigits: digits });

/** @param {number} value  ms */
export const time = value => value < 1000 ? say("ms", { n: number(value) }) : say("s", { n: number(value / 1000, 2) });

/** @param {number} bytes */
export const size = bytes => bytes < 1e6 ? say("kb", { n: number(bytes / 1e3) }) : say("mb", { n: number(bytes / 1e6, 1) });

/** The other language from now on, also next time where that may be remembered. */
export function switchLanguage() {
  language = language === "en" ? "zh" : "en";
  try {
    localStorage.setItem(REMEMBERED, language);
  } catch { /* as long as this page is open, then */ }
  translate();
}

/** Puts the words into everything that names its own. */
export function translate() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const each of document.querySelectorAll("[data-text]")) each.textContent = say(each.getAttribute("data-text") ?? "");
  for (const each of document.querySelectorAll("[data-label]")) each.setAttribute("aria-label", say(each.getAttribute("data-label") ?? ""));
  byId("reading", HTMLElement).dataset.empty = say("reading.empty");
  byId("log", HTMLElement).dataset.empty = say("log.empty");
  const other = byId("language", HTMLElement);
  other.textContent = TEXTS.language[language === "zh" ? 1 : 0];
  other.lang = language === "zh" ? "en" : "zh-CN";
}
