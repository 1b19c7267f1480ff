/** What a person writes and chooses. */

import { byId, number, say, setText } from "./page.js";
import { langOf } from "./samples.js";
import { NOTES, languageOf } from "./texts.js";
import { chars, wellFormed } from "./wire.js";

/** @typedef {import("./access.js").Voice} Voice */

export const field = byId("text", HTMLTextAreaElement), preroll = byId("preroll", HTMLInputElement), rate = byId("rate", HTMLInputElement);
const voiceField = byId("voice", HTMLSelectElement), speed = byId("speed", HTMLInputElement);
/** What a server takes for one utterance. */
const MAX_CHARACTERS = 2_000_000;
const KEPT = "cosystream.text";
/** @type {Voice[]} */
let voices = [];

/** How the text comes: text, typing or model. */
export const way = () => /** @type {HTMLInputElement} */ (document.querySelector("[name=way]:checked")).value;

/** The text, without halves of characters. */
export const written = () => wellFormed(field.value);

/** @param {string} text @returns {string}  a failure's code: why it cannot be spoken; "" where it can */
export const problemOf = text => !text.trim() ? "empty" : chars(text) > MAX_CHARACTERS ? "text_limit" : "";

/** The voice and how it speaks. */
export const manner = () => ({ voice: voiceField.value || undefined, speed: speed.disabled ? 1 : Number(speed.value) });

/** What audio is asked for. */
export const delivery = () => ({
  format: /** @type {import("./player.js").Format} */ (byId("format", HTMLSelectElement).value),
  mode: /** @type {"auto"|"stream"|"block"} */ (byId("mode", HTMLSelectElement).value),
});

/** @param {Voice[]} those  that there are; the one that is chosen stays it where it is among them */
export function offerVoices(those) {
  voices = those;
  const before = voiceField.value;
  voiceField.replaceChildren(...voices.map(each => new Option(`${each.name} (${each.languages.join(", ")})`, each.id, each.default, each.default)));
  if (!voices.some(each => each.default)) {
    const theirs = new Option(say("voice.default"), "", true, true);
    theirs.dataset.text = "voice.default";
    voiceField.prepend(theirs);
  }
  if (voices.some(each => each.id === before)) voiceField.value = before;
}

/** @param {string} language  a voice that speaks it is chosen, where there is one @returns {boolean}  whether there is */
export function needLanguage(language) {
  const able = voices.filter(each => each.languages.includes(language));
  if (able.length && !able.some(each => each.id === voiceField.value)) voiceField.value = able[0].id;
  return able.length > 0;
}

/** Shows what depends on them. */
export function showFields() {
  byId("rate-field", HTMLElement).hidden = way() !== "model";
  byId("way-hint", HTMLElement).hidden = way() === "model";
  if (way() !== "model") setText("way-hint", say(`hint.${way()}`));
  setText("rate-value", say("rate.value", { n: rate.value }));
  setText("count", say("count", { n: number(chars(field.value)) }));
  setText("preroll-value", say("ms", { n: number(Number(preroll.value)) }));
  const voice = voices.find(each => each.id === voiceField.value);
  speed.disabled = voice !== undefined && !voice.parameters.includes("speed");
  setText("speed-value", speed.disabled ? say("speed.fixed") : `${number(Number(speed.value), 2)}×`);
  const note = voice?.notice || voice?.description || "", known = NOTES[note], shown = document.documentElement.lang;
  setText("voice-note", known && shown !== "en" ? known : note);
  byId("voice-note", HTMLElement).lang = known ? shown : langOf(languageOf(note));
}

for (const each of [voiceField, speed, preroll, rate]) each.addEventListener("input", showFields);

/** Ctrl+Enter, once however long it is held, and Escape. @param {() => void} speak @param {() => void} stop */
export function onKeys(speak, stop) {
  document.addEventListener("keydown", event => {
    if (event.isComposing) return;
    if (event.key === "Escape") stop();
    const elsewhere = event.target instanceof Element && event.target.closest("#key-form");
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || elsewhere) return;
    event.preventDefault();
    if (!event.repeat) speak();
  });
}

try {  // a text lasts over a reload, which not every browser sees to
  field.value ||= sessionStorage.getItem(KEPT) ?? "";
  addEventListener("pagehide", () => sessionStorage.setItem(KEPT, field.value));
} catch { /* storage may be forbidden */ }
