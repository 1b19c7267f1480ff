/** The page: what a person does goes to the player, what the player tells goes to the page. */

import { Access } from "./access.js";
import { Door } from "./door.js";
import { Downloads } from "./downloads.js";
import { delivery, field, manner, needLanguage, offerVoices, onKeys, preroll, problemOf, rate, showFields, way, written } from "./fields.js";
import { Figures } from "./figures.js";
import { Notice } from "./notice.js";
import { byId, number, say, setText, switchLanguage, toggle, translate } from "./page.js";
import { Picture } from "./picture.js";
import { Player } from "./player.js";
import { Reading } from "./reading.js";
import { SAMPLES, langOf, offer } from "./samples.js";
import { showState, showStatus, showSupport } from "./surroundings.js";
import { TEXTS, languageOf } from "./texts.js";
import { wellFormed } from "./wire.js";
import { Typing, asModel } from "./writing.js";

/** @typedef {import("./player.js").Utterance} Utterance */

/** For so long a connection may be away without a word about it. */
const PATIENCE_MS = 3000;
/** Notices while it is away: of a server that says why, at once. */
const TRYING = ["trying", "trying_loading", "trying_stopping"];
/** Notices about a text that is not the same any more, or that was of another one's. */
const REFUSED = ["empty", "text_limit", "download_limit"];
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
/** @type {Parameters<typeof failed>[0]} what the player said last about a failure; then it rejects what failed */
let trouble = { code: "" };
/** What was typed after Finish, until there is silence. */
let held = "";
/** Whether the text is one of ours that nobody chose; there was none in it. */
let nothing = false, preset = false;
let connection = "ready", away = "", playing = "idle", silent = false, patience = 0;
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
  showState(state);
  const finish = way() === "typing" && writing, hint = byId("hint", HTMLElement);
  setText("speak", say(finish ? "finish" : "speak"));
  setText("hint", say(hint.dataset.text = finish ? "keys.finish" : "keys"));
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
  nothing = false;
  position = 0;
  heard = () => "";
  reading.begin("");
  if (text !== undefined) said(text);
  figures.begin({ ...delivery(), live: writing }, player.support);
  if (player.output) picture.listen(player.output);
  player.unlock().then(askForTap);
  wait();
  utterance.finished.then(({ samples: count, verified }) => {
    if (utterance === latest) figures.judge(verified && count ? count : null);
  }, () => { if (utterance === current) failed(trouble); });
  show();
  return utterance;
}

/** Says that the connection is away, if it is for long. */
function wait() {
  if (!current || !/connecting/.test(connection)) return;
  const known = `trying_${away}`;
  if (TRYING.includes(known)) {
    stopWaiting(known);
    notice.show(known);
  } else patience ||= setTimeout(() => { patience = 0; notice.show("trying"); }, PATIENCE_MS);
}

/** @param {string} [but]  what may stay */
function stopWaiting(but) {
  clearTimeout(patience);
  patience = 0;
  notice.clear(...TRYING.filter(each => each !== but));
}

/** Where the browser blocks the sound: as often as a tap did not help. */
function askForTap() {
  if (silent) notice.show("audio", { label: "tap", act: () => player.unlock().then(askForTap) });
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
  if (end === null && !nothing) reading.finish();
  else reading.stop(end ?? 0);
  heard = () => end === null ? say(nothing ? "heard.none" : "heard.all") : end ? say("heard.part", { n: number(end), all: number(all) }) : "";
  current = null;
  writing = false;
  held = "";
  playing = "idle";
  if (end !== null) typing.begin(false);
  figures.end(end === null);
  stopWaiting();
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
  const text = written(), problem = problemOf(text);
  if (problem) {
    notice.show(problem);
    return field.focus();
  }
  if (phone.matches) byId("actions", HTMLElement).scrollIntoView({ behavior: calm.matches ? "auto" : "smooth" });
  if (way() === "text") return begin(text);
  if (way() === "typing") {
    if (current) begin();  // its text is at its end: anew, as the other ways
    typing.begin(true);
    return typing.rest();
  }
  const utterance = begin();
  quiet = asModel(text, () => Number(rate.value), piece => { said(piece); utterance.write(piece); }, () => { utterance.end(); writing = false; });
}

/** @param {string} text @param {boolean} flush @returns {boolean}  whether it was taken */
function typed(text, flush) {
  if (door.state !== "open") return false;
  if (current && !writing) {
    held += text;
    return true;
  }
  const utterance = current ?? begin();
  said(wellFormed(text));
  utterance.write(wellFormed(text));
  if (flush) utterance.flush();
  return true;
}

/** @param {{code: string, retryable?: boolean, retryAfterMs?: number | null, reason?: string}} problem  `reason`: of a busy server */
function failed({ code, retryable, retryAfterMs, reason }) {
  if (!current && (retryable || code === "idle_timeout")) return;  // nobody asked for anything yet
  const act = current && speak;
  if (current) {
    figures.note("log.failed");
    over(position);
  }
  if (code === "unauthorized") door.refused();
  else notice.show(`error.${reason}` in TEXTS ? String(reason) : code, { retryAfterMs, act, alone: reason === "loading" });
}

/** The door is open now, or not any more. */
function entered() {
  if (door.state === "open") {
    offerVoices(door.voices);
    if (preset) usePreset();
    preset = false;
  }
  show();
  showFields();
}

/** The text was changed. */
function changed() {
  notice.clear(...REFUSED);
  preset = false;
  samples.value = "";
  showFields();
  if (way() === "typing") typing.changed();
}

/** @param {typeof SAMPLES[number]} sample */
function useSample({ lang, text }) {
  field.value = text;
  needLanguage(lang);
  preset = false;
  useText();
}

/** One in the page's language, or else in one that the voices speak. */
function usePreset() {
  const first = document.documentElement.lang === "en" ? SAMPLES[0] : SAMPLES[1];
  useSample([first, ...SAMPLES].find(({ lang }) => needLanguage(lang)) ?? first);
}

/** What is in the field is to be spoken when it is asked for. */
function useText() {
  field.lang = langOf(languageOf(field.value));
  samples.value = SAMPLES.find(({ text }) => text === field.value)?.name ?? "";
  typing.begin(false);
  notice.clear(...REFUSED);
  showFields();
}

/** @param {string} kind @param {(detail: any) => void} act  details are the player's, see there */
const on = (kind, act) => player.addEventListener(kind, event => act(/** @type {CustomEvent} */ (event).detail));
/** @param {string} kind @param {(detail: any) => void} act  of what is spoken now */
const onCurrent = (kind, act) => on(kind, detail => { if (current && detail.id === current.id) act(detail); });
onCurrent("word", ({ start, end }) => reading.word(position = start, end));
onCurrent("event", ({ message }) => {
  if (message.type === "segment_begin") reading.segment(message.start, message.end);
  if (message.type === "done") nothing = message.samples === 0;
});
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
  notice.clear(...REFUSED);
  figures.note("log.stopped");
  over(heardTextEnd);
});
on("state", ({ state, reason }) => {
  showSupport(player.support);  // by now it is known whether there is a Worker
  if (state === "reconnecting" && connection !== state) figures.note("log.lost", "reconnect");
  if (state === "ready" && connection === "reconnecting") figures.note("log.back");
  if (state !== connection) stopWaiting();
  if (state === "ready" && door.state === "open") notice.clear("unreachable");
  if (state === "ready" && current) askForTap();
  [connection, away] = [state, reason];
  wait();
  show();
});
on("failure", detail => { trouble = detail; if (!current) failed(detail); });  // another one's is none of ours
on("audio", ({ needsTap }) => {
  if (needsTap === silent) return;
  silent = needsTap;
  if (silent) askForTap();
  else notice.clear("audio");
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
speakButton.addEventListener("click", event => {  // a double click does not finish what it has begun
  if (event.detail <= 1 || way() !== "typing") speak();
});
stopButton.addEventListener("click", () => player.stop());
onKeys(speak, () => { if (current) player.stop(); });
downloads.bind(() => ({ text: written(), ...manner() }), () => door.refused());
byId("cut", HTMLElement).addEventListener("click", () => {
  figures.note("log.cut");
  player.cut();
});
byId("rough", HTMLElement).addEventListener("click", () => {
  const bad = toggle("rough");
  figures.note(bad ? "log.rough" : "log.calm");
  player.rough(bad);
});
byId("language", HTMLElement).addEventListener("click", () => {
  switchLanguage();
  for (const each of [door, notice, figures, downloads]) each.translate();
  showSupport(player.support);
  show();
  showFields();
});

translate();
if (field.value) useText();
else {
  usePreset();
  preset = true;
}
figures.translate();
showSupport(player.support);
player.set({ prerollMs: Number(preroll.value) });
show();
byId("unloaded", HTMLElement).hidden = true;
door.enter();
showStatus();
