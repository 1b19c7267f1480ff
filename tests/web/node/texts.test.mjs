import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

import { SAMPLES } from "../../../demo_web/samples.js";
import { TEXTS, failureKey, languageOf, modeReason, phrase } from "../../../demo_web/texts.js";

const page = new URL("../../../demo_web/", import.meta.url);
const read = (name) => readFileSync(new URL(name, page), "utf8");
const places = (text) => (text.match(/\{\w+\}/g) ?? []).sort();

test("both languages say everything, with the same places", () => {
  for (const [key, pair] of Object.entries(TEXTS)) {
    assert.equal(pair.length, 2, key);
    assert.ok(pair.every((text) => text.trim()), key);
    assert.deepEqual(places(pair[0]), places(pair[1]), key);
    if (key !== "language") assert.doesNotMatch(pair[0], /\p{Script=Han}/u, key);
  }
});

/** The failure codes that a file of the page makes. */
function codesOf(source) {
  const places = [/\bcode(?::| =) ([^,;}]+)/g, /AccessError\(([^,;]+)/g, /unknown = ([^;]+)/g, /#fail(?:ed)?\(("\w+")/g,
    /notice\.show\(("\w+")/g, /TRYING = ([^;]+)/g, /problemOf = ([^;]+)/g, /LATER = ([^;]+)/g];
  const code = source.replace(/\/\*[^]*?\*\//g, "");
  const found = places.flatMap((place) => [...code.matchAll(place)]);
  return found.flatMap(([, value]) => [...value.matchAll(/"(\w+)"/g)].map(([, each]) => each));
}

/** Those of HTTP, and of the protocol. */
function codesOfTheServer() {
  const gateway = new URL("../../../server/gateway/", import.meta.url);
  const python = readdirSync(gateway).filter((name) => name.endsWith(".py"));
  const sources = python.map((name) => readFileSync(new URL(name, gateway), "utf8")).join("\n");
  const http = [...sources.matchAll(/^    \d{3}: "(\w+)"|\bcode="(\w+)"/gm)].map(([, status, other]) => status ?? other);
  const { codes } = JSON.parse(readFileSync(new URL("../../../protocol/vectors/errors.json", import.meta.url)));
  return [...http, ...Object.keys(codes)];
}

test("every failure that page, player or server can tell has words", () => {
  const ours = readdirSync(page).filter((name) => name.endsWith(".js")).flatMap((name) => codesOf(read(name)));
  const some = ["no_opus", "no_worker", "no_audio", "bad_value", "closed", "gone", "busy", "unreachable", "misbehaved", "unauthorized",
    "internal", "download", "download_limit", "empty", "text_limit", "forbidden", "trying", "trying_loading", "stopping", "audio"];
  assert.deepEqual(some.filter((code) => !ours.includes(code)), [], "not found in the sources");
  const theirs = codesOfTheServer();
  assert.deepEqual(["bad_ack", "too_many_requests", "too_many_voices"].filter((code) => !theirs.includes(code)), []);
  for (const code of [...ours, ...theirs, "capacity", "sessions", "rate", "quota"]) {
    assert.notEqual(failureKey(code), "error.unknown", code);
    assert.ok(failureKey(code) in TEXTS, code);
  }
});

test("a code that nobody knows is shown as it is", () => {
  assert.equal(phrase("en", failureKey("brand_new"), { code: "brand_new" }), "It did not work: brand_new.");
});

test("every reason of a mode has words, and new ones are shown", () => {
  for (const reason of ["", "fixed", "ack_age", "stall", "buffer_low", "buffer_falling", "jitter", "resumed", "recovered", "idle"])
    for (const language of ["en", "zh"]) assert.notEqual(modeReason(language, reason), reason);
  assert.equal(modeReason("zh", "solar_wind"), "solar wind");
});

test("everything that the browser may lack has words", () => {
  for (const code of ["insecure_context", "no_worker", "no_webcodecs"]) assert.ok(`support.${code}` in TEXTS, code);
});

test("the page asks for no words that do not exist, and has none that nobody asks for", () => {
  const html = read("index.html");
  const asked = [...html.matchAll(/data-(?:text|label)="([^"]+)"/g)].map((found) => found[1]);
  const scripts = readdirSync(page).filter((name) => name.endsWith(".js") && name !== "texts.js").map(read).join("\n");
  for (const found of scripts.matchAll(/\b(?:say|note)\("([\w.]+)"/g)) asked.push(found[1]);
  for (const key of asked) assert.ok(key in TEXTS, key);
  const families = /^(error|support|reason|state|hint|used)\.|^mode\.(stream|block)$|^(tap|language)$/;
  for (const key of Object.keys(TEXTS))
    assert.ok(families.test(key) || asked.includes(key) || scripts.includes(`"${key}"`), `${key} is never used`);
});

test("places are filled in", () => {
  assert.equal(phrase("en", "ms", { n: 0 }), "0 ms");
  assert.equal(phrase("zh", "heard.part", { n: 3, all: 9 }), "已停止。共 9 个字符，听到 3 个（下划线）。");
});

test("a text's language", () => {
  for (const { lang, text } of SAMPLES) assert.equal(languageOf(text), lang);
  assert.equal(languageOf("我们用 iPhone 测试 streaming"), "zh");
  assert.equal(languageOf(""), "en");
});
