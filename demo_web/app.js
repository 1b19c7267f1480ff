/** The page: what a person does goes to the player, what the player tells goes to the page. */

import { Access } from "./access.js";
import { Downloads } from "./downloads.js";
import { Figures } from "./figures.js";
import { Notice } from "./notice.js";
import { byId, number, say, setText, switchLanguage, translate } from "./page.js";
import { Picture } from "./picture.js";
import { Player } from "./player.js";
import { Reading } from "./reading.js";
import { SAMPLES, TEXTS, languageOf } from "./texts.js";
import { chars, wellFormed } from "./wire.js";
import { Typing, asModel } from "./writing.js";

/** @typedef {import("./access.js").Voice} Voice */
const OPEN_AGAIN_MS = 3000;
const field = byId("text", HTMLTextAreaElement), speakButton = byId("speak", HTMLButtonElement), stopButton = byId("stop", HTMLButtonElement);
const voiceField = byId("voice", HTMLSelectElement), formatField = byId("format", HTMLSelectElement), modeField = byId("mode", HTMLSelectElement);
const speed = byId("speed", HTMLInputElement), preroll = byId("preroll", HTMLInputElement), rate = byId("rate", HTMLInputElement);

/** Where the controls and what is heard stand below each other. */
const phone = matchMedia("(max-width: 860px)"), calm = matchMedia("(prefers-reduced-motion: reduce)");

const access = new Access(document.baseURI);
const player = new Player({ token: () => access.token() });
const figures = new Figures(), notice = new Notice(), reading = new Reading(byId("reading", HTMLElement));
const picture = new Picture(byId("picture", HTMLCanvasElement));
const downloads = new Downloads(access, notice);
const typing = new Typing(field, typed);

/** @type {Voice[]} */
let voices = [];
let engine = "";
/** `starting`, `locked`, `away` or `open`: whether the server lets us in */
let door = "starting";
/** @type {import("./player.js").Utterance | null} what is spoken now */
let current = null;
/** @type {import("./player.js").Utterance | null} what was spoken last, too */
let latest = null;
let writing = false;
/** What was typed after Finish, until there is silence. */
let held = "";
let connection = "ready", playing = "idle", silent = false;
/** Stops the writing of a text that comes like a model's. @type {() => void} */
let quiet = () => {};
/** The text before this code point was heard. */
let position = 0;
/** What the line below the text says. @type {() => string} */
let heard = () => "";

const way = () => /** @type {HTMLInputElement} */ (document.querySelector("[name=way]:checked")).value;

/** Everything that depends on what goes on. */
function show() {
  const active = current !== null, open = door === "open";
  const state = silent && active ? "silent" : !open ? door : connection === "reconnecting" ? "reconnecting"
    : !active ? "idle" : playing === "playing" ? "speaking" : playing === "stalled" ? "stalled" : connection === "connecting" ? "connecting" : "waiting";
  setText("state", say(`state.${state}`));
  byId("state", HTMLElement).className = `pill ${({ idle: "good", speaking: "good", away: "bad", silent: "bad", locked: "warn", reconnecting: "warn",
    stalled: "warn" })[state] ?? "soft"}`;
  setText("speak", say(way() === "typing" && writing ? "finish" : "speak"));
  speakButton.disabled = !open;
  stopButton.disabled = !active;
  byId("cut", HTMLButtonElement).disabled = !active;
  byId("rough", HTMLButtonElement).disabled = !open;
  downloads.enable(open);
  picture.play(active && playing === "playing");
}

function showFields() {
  byId("rate-field", HTMLElement).hidden = way() !== "model";
  byId("way-hint", HTMLElement).hidden = way() === "model";
  setText("way-hint", way() === "model" ? "" : say(`hint.${way()}`));
  setText("rate-value", say("rate.value", { n: rate.value }));
  rate.setAttribute("aria-valuetext", say("rate.value", { n: rate.value }));
  setText("count", say("count", { n: number(chars(field.value)) }));
  setText("preroll-value", say("ms", { n: number(Number(preroll.value)) }));
  const chosen = voices.find(each => each.id === voiceField.value);
  speed.disabled = chosen !== undefined && !chosen.parameters.includes("speed");
  setText("speed-value", speed.disabled ? say("speed.fixed") : `${number(Number(speed.value), 2)}×`);
  setText("voice-note", chosen?.notice || chosen?.description || "");
  setText("heard", heard());
  setText("engine", engine && say("engine", { name: engine }));
  const reasons = player.support.reasons.filter(each => `support.${each}` in TEXTS);
  const shown = reasons.includes("insecure_context") ? ["insecure_context"] : reasons;
  byId("support", HTMLElement).hidden = !shown.length;
  setText("support", shown.map(each => say(`support.${each}`)).join(" "));
}

function settings() {
  return { voice: voiceField.value || undefined, speed: speed.disabled ? 1 : Number(speed.value) };
}

/** Tells the player what is chosen. */
function choose() {
  const chosen = { format: /** @type {import("./player.js").Format} */ (formatField.value), mode: /** @type {"auto"|"stream"|"block"} */ (modeField.value) };
  player.set({ ...settings(), ...chosen });
  return chosen;
}

/** Has a connection ready for what is chosen. */
function warm() {
  if (door !== "open" || current) return;
  choose();
  player.warm();
}

/** @param {string | undefined} text  all of it, or none: it is written to then */
function begin(text) {
  notice.clear();
  quiet();
  if (current) player.stop();
  const chosen = choose(), utterance = player.speak(text);
  current = latest = utterance;
  writing = text === undefined;
  playing = "waiting";
  position = 0;
  heard = () => "";
  reading.begin("");
  if (text !== undefined) said(text);
  figures.begin({ ...chosen, live: writing }, player.support);
  if (player.output) picture.listen(player.output);
  utterance.finished.then(({ samples, verified }) => {
    if (verified && utterance === latest) figures.know("verified", samples);
  }, problem => { if (utterance === current) failed(problem); });
  show();
  showFields();
  return utterance;
}

/** @param {string} text  is being spoken from now on */
function said(text) {
  if (!reading.points) reading.panel.lang = languageOf(text) === "zh" ? "zh-CN" : "en";
  reading.append(text);
}

/** @param {number | null} end  what was heard: the text before it, or all of it */
function over(end) {
  quiet();
  const all = reading.points;
  if (end === null) reading.finish();
  else reading.stop(end);
  heard = () => end === null ? say("heard.all") : end ? say("heard.part", { n: number(end), all: number(all) }) : "";
  current = null;
  writing = false;
  playing = "idle";
  if (end !== null) typing.begin(false);
  figures.end();
  show();
  showFields();
  const next = held;
  held = "";
  if (next && end === null) typed(next, false);
}

function speak() {
  if (door !== "open") return;
  if (way() === "typing" && writing && current) {
    typing.rest();
    current.end();
    writing = false;
    return show();
  }
  const text = wellFormed(field.value);
  if (!text.trim()) {
    notice.show("empty");
    return field.focus();
  }
  if (phone.matches) byId("actions", HTMLElement).scrollIntoView({ behavior: calm.matches ? "auto" : "smooth" });
  if (way() === "text") return begin(text);
  if (way() === "typing") {
    typing.begin(true);
    return typing.rest();
  }
  const utterance = begin(undefined);
  quiet = asModel(text, () => Number(rate.value), piece => { utterance.write(piece); said(piece); }, () => { utterance.end(); writing = false; });
}

/** @param {string} text @param {boolean} flush */
function typed(text, flush) {
  if (door !== "open") return;
  if (current && !writing) {
    held += text;
    return;
  }
  const utterance = current ?? begin(undefined);
  utterance.write(wellFormed(text));
  said(wellFormed(text));
  if (flush) utterance.flush();
}

async function stop() {
  quiet();
  if (current) await player.stop();
}

/** @param {{code: string, retryAfterMs?: number | null, message?: string, reason?: string}} problem */
function failed(problem) {
  const code = problem.code ?? "internal", reason = `error.${problem.reason}` in TEXTS ? String(problem.reason) : code;
  if (current) {
    figures.note("log.failed");
    over(position);
  }
  if (code === "unauthorized") return locked("key.expired");
  notice.show(reason, { retryAfterMs: problem.retryAfterMs, act: speak });
}

/** @param {string} why  a key of the texts, or nothing */
function locked(why) {
  door = "locked";
  byId("key-form", HTMLElement).hidden = false;
  setText("key-problem", why && say(why));
  byId("key", HTMLInputElement).focus();
  show();
}

/** Asks for the voices, which tells whether the server lets us in. */
async function enter() {
  try {
    const answer = await access.voices();
    ({ engine, voices } = answer);
  } catch (problem) {
    const { code = "internal", retryAfterMs } = /** @type {import("./access.js").AccessError} */ (problem);
    if (code === "unauthorized") return locked(door === "starting" ? "" : "key.expired");
    door = "away";
    notice.show(code, { retryAfterMs: retryAfterMs ?? OPEN_AGAIN_MS, act: enter, alone: true });
    return show();
  }
  door = "open";
  notice.clear();
  byId("key-form", HTMLElement).hidden = true;
  const before = voiceField.value;
  voiceField.replaceChildren(...voices.map(each => new Option(`${each.name} (${each.languages.join(", ")})`, each.id, each.default)));
  if (!voices.some(each => each.default)) voiceField.prepend(new Option(say("voice.default"), "", true, true));
  if (voices.some(each => each.id === before)) voiceField.value = before;
  show();
  showFields();
}

/** @param {string} kind @param {(detail: any) => void} act  details are the player's, see there */
const on = (kind, act) => player.addEventListener(kind, event => act(/** @type {CustomEvent} */ (event).detail));
on("word", ({ id, start, end }) => {
  if (id !== current?.id) return;
  position = start;
  reading.word(start, end);
});
on("event", ({ id, message }) => {
  if (id !== current?.id) return;
  if (message.type === "segment_begin") reading.segment(message.start, message.end);
});
on("report", report => {
  if (report.id !== undefined && report.id !== current?.id) return;
  figures.report(report);
  if (!report.state || report.state === playing || !current) return;
  playing = report.state;
  show();
});
on("first", ({ id, ms }) => { if (id === current?.id) figures.know("first", ms); });
on("audible", ({ id, ms }) => {
  if (id !== current?.id) return;
  if (player.output) picture.listen(player.output);
  figures.know("audible", ms);
});
on("ended", ({ id }) => { if (id === current?.id) over(null); });
on("stopped", ({ id, heardTextEnd }) => {
  if (id !== current?.id) return;
  figures.note("log.stopped");
  over(heardTextEnd);
});
on("state", ({ state }) => {
  if (state === "reconnecting" && connection !== state) figures.note("log.lost", "reconnect");
  if (state === "ready" && connection === "reconnecting") figures.note("log.back");
  connection = state;
  show();
});
on("failure", failed);
on("audio", ({ needsTap }) => {
  if (needsTap && !silent) notice.show("audio", { label: "tap", act: () => player.unlock() });
  if (!needsTap) notice.clear("audio");
  silent = needsTap;
  show();
});

for (const { lang, name } of SAMPLES) {
  const option = new Option(name, name);
  option.lang = lang === "zh" ? "zh-CN" : "en";
  byId("sample", HTMLSelectElement).append(option);
}
byId("sample", HTMLSelectElement).addEventListener("change", event => {
  const sample = SAMPLES.find(each => each.name === /** @type {HTMLSelectElement} */ (event.target).value);
  if (sample) useSample(sample);
});

/** @param {typeof SAMPLES[number]} sample */
function useSample({ lang, name, text }) {
  field.value = text;
  field.lang = lang === "zh" ? "zh-CN" : "en";
  byId("sample", HTMLSelectElement).value = name;
  if (!voices.find(each => each.id === voiceField.value)?.languages.includes(lang))
    voiceField.value = voices.find(each => each.languages.includes(lang))?.id ?? voiceField.value;
  typing.begin(false);
  showFields();
}

byId("ways", HTMLElement).addEventListener("change", () => {
  quiet();
  if (writing && current) current.end();
  writing = false;
  typing.begin(false);
  show();
  showFields();
});
let composing = false;
field.addEventListener("compositionstart", () => { composing = true; });
field.addEventListener("compositionend", () => { composing = false; changed(); });
field.addEventListener("input", () => { if (!composing) changed(); });
function changed() {
  notice.clear("empty");
  showFields();
  if (way() === "typing") typing.changed();
}
for (const kind of ["focus", "pointerenter"]) speakButton.addEventListener(kind, warm);
field.addEventListener("focus", warm);
for (const each of [voiceField, speed, preroll, rate]) each.addEventListener("input", showFields);
preroll.addEventListener("change", () => player.set({ prerollMs: Number(preroll.value) }));
speakButton.addEventListener("click", speak);
stopButton.addEventListener("click", stop);
document.addEventListener("keydown", event => {
  if (event.isComposing) return;
  if (event.key === "Escape" && current) stop();
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  speak();
});
downloads.bind(() => ({ text: wellFormed(field.value), ...settings() }), locked);
byId("cut", HTMLElement).addEventListener("click", () => { figures.note("log.cut"); player.cut(); });
byId("rough", HTMLElement).addEventListener("click", event => {
  const button = /** @type {HTMLElement} */ (event.currentTarget), rough = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(rough));
  figures.note(rough ? "log.rough" : "log.calm");
  player.rough(rough);
});
byId("key-form", HTMLFormElement).addEventListener("submit", async event => {
  event.preventDefault();
  const key = byId("key", HTMLInputElement);
  setText("key-problem", "");
  try {
    await access.use(key.value.trim());
  } catch (problem) {
    const { code } = /** @type {import("./access.js").AccessError} */ (problem);
    setText("key-problem", say(code === "unauthorized" ? "key.wrong" : `error.${code}` in TEXTS ? `error.${code}` : "error.internal"));
    return key.select();
  }
  key.value = "";
  await enter();
});
byId("language", HTMLElement).addEventListener("click", () => {
  switchLanguage();
  notice.translate();
  figures.translate();
  downloads.translate();
  show();
  showFields();
});

translate();
useSample(SAMPLES[document.documentElement.lang === "en" ? 0 : 1]);
figures.translate();
show();
showFields();
enter();
addEventListener("online", () => { if (door === "away") enter(); });
