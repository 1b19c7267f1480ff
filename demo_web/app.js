/** The page: what a person does goes to the player, what the player tells goes to the page. */

import { Access } from "./access.js";
import { Door } from "./door.js";
import { Downloads } from "./downloads.js";
import { delivery, field, manner, needLanguage, offerVoices, preroll, rate, showFields, way, written } from "./fields.js";
import { Figures } from "./figures.js";
import { Notice } from "./notice.js";
import { byId, number, say, setText, switchLanguage, translate } from "./page.js";
import { Picture } from "./picture.js";
import { Player } from "./player.js";
import { Reading } from "./reading.js";
import { SAMPLES, langOf, offer } from "./samples.js";
import { TEXTS, languageOf } from "./texts.js";
import { wellFormed } from "./wire.js";
import { Typing, asModel } from "./writing.js";

/** @typedef {import("./player.js").Utterance} Utterance */

/** For so long a connection may be away without a word about it. */
const PATIENCE_MS = 3000;
/** @type {Record<string, string>} */
const TONES = { idle: "good", speaking: "good", away: "bad", silent: "bad", locked: "warn", reconnecting: "warn", stalled: "warn" };
const speakButton = byId("speak", HTMLButtonElement), stopButton = byId("stop", HTMLButtonElement), samples = byId("sample", HTMLSelectElement);
/** Where the controls and what is heard stand below each other. */
const phone = matchMedia("(max-width: 860px)"), calm = matchMedia("(prefers-reduced-motion: reduce)");

const access = new Access(document.baseURI);
const player = new Player({ token: () => access.fresh() });
const figures = new Figures(), notice = new Notice(), reading = new Reading(byId("reading", HTMLElement));
const picture = new Picture(byId("picture", HTMLCanvasElement));
const downloads = new Downloads(access, notice), door = new Door(access, notice, entered);
const typing = new Typing(field, typed);

/** @type {Utterance | null} what is spoken now */
let current = null;
/** @type {Utterance | null} what was spoken last, too */
let latest = null;
/** Whether its text is not at its end. */
let writing = false;
/** What was typed after Finish, until there is silence. */
let held = "";
let connection = "ready", playing = "idle", silent = false, patience = 0;
/** The text before this code point was heard. */
let position = 0;
/** Stops the writing of a text that comes like a model's. */
let quiet = () => {};
/** What the line below the text says. */
let heard = () => "";

/** Everything that depends on what goes on. */
function show() {
  const active = current !== null, open = door.state === "open";
  const state = silent && active ? "silent" : !open ? door.state : connection === "reconnecting" ? "reconnecting" : !active ? "idle"
    : playing === "playing" ? "speaking" : playing === "stalled" ? "stalled" : connection === "connecting" ? "connecting" : "waiting";
  setText("state", say(`state.${state}`));
  byId("state", HTMLElement).className = `pill ${TONES[state] ?? "soft"}`;
  setText("speak", say(way() === "typing" && writing ? "finish" : "speak"));
  speakButton.disabled = !open;
  if (!active && document.activeElement?.matches("#stop, #cut")) speakButton.focus();  // what is disabled would lose it
  stopButton.disabled = !active;
  byId("cut", HTMLButtonElement).disabled = !active;
  byId("rough", HTMLButtonElement).disabled = !open;
  setText("heard", heard());
  setText("engine", door.engine && say("engine", { name: door.engine }));
  downloads.enable(open);
  picture.play(active && playing === "playing");
}

/** Has a connection ready for what is chosen. */
function warm() {
  if (door.state !== "open" || current) return;
  player.set(delivery());
  player.warm();
}

/** @param {string} [text]  all of it; without one it is written to */
function begin(text) {
  notice.clear();
  quiet();
  held = "";
  if (current) player.stop();
  player.set({ ...manner(), ...delivery() });
  const utterance = player.speak(text);
  current = latest = utterance;
  writing = text === undefined;
  playing = "waiting";
  position = 0;
  heard = () => "";
  reading.begin("");
  if (text !== undefined) said(text);
  figures.begin({ ...delivery(), live: writing }, player.support);
  if (player.output) picture.listen(player.output);
  utterance.finished.then(({ samples: count, verified }) => {
    if (verified && utterance === latest) figures.know("verified", count);
  }, problem => { if (utterance === current) failed(problem); });
  show();
  return utterance;
}

/** @param {string} text  is being spoken from now on */
function said(text) {
  if (!reading.points) reading.panel.lang = langOf(languageOf(text));
  reading.append(text);
}

/** @param {number | null} end  what was heard: the text before it, or all of it */
function over(end) {
  quiet();
  const all = reading.points, next = held;
  if (end === null) reading.finish();
  else reading.stop(end);
  heard = () => end === null ? say("heard.all") : end ? say("heard.part", { n: number(end), all: number(all) }) : "";
  current = null;
  writing = false;
  held = "";
  playing = "idle";
  if (end !== null) typing.begin(false);
  figures.end();
  notice.clear("trying");
  show();
  if (next && end === null) typed(next, false);
}

function speak() {
  if (door.state !== "open") return;
  if (way() === "typing" && writing && current) {
    typing.rest();
    current.end();
    writing = false;
    return show();
  }
  const text = written();
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
  const utterance = begin();
  quiet = asModel(text, () => Number(rate.value), piece => { said(piece); utterance.write(piece); }, () => { utterance.end(); writing = false; });
}

/** @param {string} text @param {boolean} flush */
function typed(text, flush) {
  if (door.state !== "open") return;
  if (current && !writing) {
    held += text;
    return;
  }
  const utterance = current ?? begin();
  said(wellFormed(text));
  utterance.write(wellFormed(text));
  if (flush) utterance.flush();
}

/** @param {{code: string, retryAfterMs?: number | null, reason?: string}} problem  `reason`: of a busy server */
function failed({ code, retryAfterMs, reason }) {
  if (current) {
    figures.note("log.failed");
    over(position);
  } else if (code === "idle_timeout") return;
  if (code === "unauthorized") door.refused();
  else notice.show(`error.${reason}` in TEXTS ? String(reason) : code, { retryAfterMs, act: speak, alone: reason === "loading" });
}

/** The door is open now, or not any more. */
function entered() {
  if (door.state === "open") offerVoices(door.voices);
  show();
  showFields();
}

/** Says what this browser or this address lacks. */
function showSupport() {
  const missing = player.support.reasons.filter(each => `support.${each}` in TEXTS);
  const told = missing.includes("insecure_context") ? ["insecure_context"] : missing;
  byId("support", HTMLElement).hidden = !told.length;
  setText("support", told.map(each => say(`support.${each}`)).join(" "));
}

/** The text was changed. */
function changed() {
  notice.clear("empty");
  showFields();
  if (way() === "typing") typing.changed();
}

/** @param {typeof SAMPLES[number]} sample */
function useSample({ lang, name, text }) {
  field.value = text;
  field.lang = langOf(languageOf(text));
  samples.value = name;
  needLanguage(lang);
  typing.begin(false);
  showFields();
}

/** @param {string} kind @param {(detail: any) => void} act  details are the player's, see there */
const on = (kind, act) => player.addEventListener(kind, event => act(/** @type {CustomEvent} */ (event).detail));
/** @param {string} kind @param {(detail: any) => void} act  of what is spoken now */
const onCurrent = (kind, act) => on(kind, detail => { if (current && detail.id === current.id) act(detail); });
onCurrent("word", ({ start, end }) => reading.word(position = start, end));
onCurrent("event", ({ message }) => { if (message.type === "segment_begin") reading.segment(message.start, message.end); });
onCurrent("report", report => {
  figures.report(report);
  if (report.state === playing) return;
  playing = report.state;
  show();
});
onCurrent("first", ({ ms }) => figures.know("first", ms));
onCurrent("audible", ({ ms }) => {
  if (player.output) picture.listen(player.output);
  figures.know("audible", ms);
});
onCurrent("ended", () => over(null));
onCurrent("stopped", ({ heardTextEnd }) => {
  figures.note("log.stopped");
  over(heardTextEnd);
});
on("state", ({ state }) => {
  if (state === "reconnecting" && connection !== state) figures.note("log.lost", "reconnect");
  if (state === "ready" && connection === "reconnecting") figures.note("log.back");
  if (state !== connection) {
    clearTimeout(patience);
    notice.clear("trying");
    if (/connecting/.test(state)) patience = setTimeout(() => { if (current) notice.show("trying"); }, PATIENCE_MS);
  }
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

offer(samples, useSample);
byId("ways", HTMLElement).addEventListener("change", () => {
  quiet();
  if (writing && current) current.end();
  writing = false;
  typing.begin(false);
  show();
  showFields();
});
field.addEventListener("compositionend", changed);
field.addEventListener("input", event => { if (!/** @type {InputEvent} */ (event).isComposing) changed(); });
preroll.addEventListener("change", () => player.set({ prerollMs: Number(preroll.value) }));
speakButton.addEventListener("pointerenter", warm);
field.addEventListener("focus", warm);
speakButton.addEventListener("click", speak);
stopButton.addEventListener("click", () => player.stop());
document.addEventListener("keydown", event => {
  if (event.isComposing) return;
  if (event.key === "Escape" && current) player.stop();
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  speak();
});
downloads.bind(() => ({ text: written(), ...manner() }), () => door.refused());
byId("cut", HTMLElement).addEventListener("click", () => {
  figures.note("log.cut");
  player.cut();
});
byId("rough", HTMLElement).addEventListener("click", () => {
  const rough = byId("rough", HTMLElement), bad = rough.getAttribute("aria-pressed") !== "true";
  rough.setAttribute("aria-pressed", String(bad));
  figures.note(bad ? "log.rough" : "log.calm");
  player.rough(bad);
});
byId("language", HTMLElement).addEventListener("click", () => {
  switchLanguage();
  for (const each of [door, notice, figures, downloads]) each.translate();
  showSupport();
  show();
  showFields();
});

translate();
useSample(SAMPLES[document.documentElement.lang === "en" ? 0 : 1]);
figures.translate();
showSupport();
player.set({ prerollMs: Number(preroll.value) });
show();
door.enter();
