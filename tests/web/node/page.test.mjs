import assert from "node:assert/strict";
import { test } from "node:test";

import { Access, AccessError } from "../../../demo_web/access.js";
import { pathOf, roundTop, topOf } from "../../../demo_web/chart.js";
import { download, trueLengths } from "../../../demo_web/download.js";
import { TextMap } from "../../../demo_web/reading.js";
import { Typing, certain, sentAfter, wholeAt } from "../../../demo_web/writing.js";

/** Every code point of a text is found where it is. */
function checkMap(map, text) {
  let at = 0;
  for (const character of text) {
    const { block, unit } = map.locate(at);
    assert.equal(String.fromCodePoint(map.blocks[block].text.codePointAt(unit)), character, `at ${at}`);
    at++;
  }
  assert.equal(map.points, at);
  assert.equal(map.blocks.map((each) => each.text).join(""), text);
}

test("a text's places are found, however it came", () => {
  const text = `One 👋 two.\n\n${"三百六十五里路，𠮷。".repeat(400)}\nlast`;
  const whole = new TextMap();
  whole.append(text);
  checkMap(whole, text);
  const bits = new TextMap();
  const points = [...text];
  for (let at = 0; at < points.length; at += 7) bits.append(points.slice(at, at + 7).join(""));
  checkMap(bits, text);
});

test("no block is long, and none cuts a character or, where it can be helped, a word", () => {
  const map = new TextMap();
  map.append("word ".repeat(20_000));
  assert.ok(map.blocks.every((each) => each.text.length <= 1700 && each.text.endsWith(" ")));
  const solid = new TextMap();
  solid.append("👋".repeat(5000));
  assert.ok(solid.blocks.length > 3);
  assert.ok(solid.blocks.every((each) => each.text.length === 2 * each.points));
});

test("a word counts when it is finished", () => {
  const sure = (text) => text.slice(0, certain(text));
  assert.equal(sure("Hello wor"), "Hello ");
  assert.equal(sure("Hello "), "Hello ");
  assert.equal(sure("3.1"), "");
  assert.equal(sure("你好"), "你好");
  assert.equal(sure("你好 iPho"), "你好 ");
  assert.equal(sure("你好，"), "你好，");
});

test("what was sent cannot be unsaid, and what was typed is said once", () => {
  assert.equal(sentAfter("abc", "abcd", 3), 3, "typed on");
  assert.equal(sentAfter("abc", "abd", 2), 2, "corrected before it was sent");
  assert.equal(sentAfter("abc", "ab", 3), 2, "taken back");
  assert.equal(sentAfter("one two three", "one twin three", 13), 14, "changed in the middle");
  assert.equal(sentAfter("one two thr", "one  two thr", 8), 9, "in the middle, with a word pending");
  assert.equal(sentAfter("an old text.", "something quite new.", 12), 0, "replaced");
});

test("typing sends words, the rest at Enter", () => {
  const sent = [];
  const field = { value: "" };
  const typing = new Typing(field, (text, flush) => sent.push([text, flush]));
  typing.begin(true);
  for (const character of "Hi there\nand") {
    field.value += character;
    typing.changed();
  }
  assert.deepEqual(sent, [["Hi ", false], ["there\n", true]]);
  typing.rest();
  assert.deepEqual(sent.at(-1), ["and", false]);
  typing.rest();
  assert.equal(sent.length, 3);
});

test("the last word is sent after a moment", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const sent = [];
  const field = { value: "" };
  const typing = new Typing(field, (text) => sent.push(text));
  field.value = "done";
  typing.changed();
  context.mock.timers.tick(699);
  assert.deepEqual(sent, []);
  context.mock.timers.tick(1);
  assert.deepEqual(sent, ["done"]);
});

test("pieces are never half a character", () => {
  assert.equal(wholeAt("a👋b", 2), 3);
  assert.equal(wholeAt("a👋b", 1), 1);
  assert.equal(wholeAt("a👋b", 3), 3);
});

const header = (extra = 0) => {
  const bytes = new Uint8Array(44 + extra), view = new DataView(bytes.buffer);
  const put = (at, text) => [...text].forEach((each, index) => { bytes[at + index] = each.charCodeAt(0); });
  put(0, "RIFF"); put(8, "WAVE"); put(12, "fmt ");
  view.setUint32(16, 16, true);
  put(36, "data");
  view.setUint32(4, 0xffffffff, true);
  view.setUint32(40, 0xffffffff, true);
  return bytes;
};

test("a WAV file says its true length", () => {
  const fixed = new DataView(trueLengths(header(10), 44 + 48_000).buffer);
  assert.equal(fixed.getUint32(4, true), 36 + 48_000);
  assert.equal(fixed.getUint32(40, true), 48_000);
  assert.equal(fixed.byteLength, 54);
});

test("what is no WAV file is not saved as one", () => {
  assert.throws(() => trueLengths(new Uint8Array(100), 100), AccessError);
  assert.throws(() => trueLengths(header().subarray(0, 20), 20), AccessError);
  const wrong = header();
  wrong[36] = 0;
  assert.throws(() => trueLengths(wrong, 44), AccessError);
});

test("the chart's top is round, and a pause is a gap", () => {
  assert.deepEqual([0.3, 1, 1.2, 4.1, 7, 384, 0].map(roundTop), [0.5, 1, 2, 5, 10, 500, 0.1]);
  const points = [0, 250, 3000, 3250].map((time) => ({ time, buffer: 1, rate: 0 }));
  assert.equal(pathOf(points, "buffer", (time) => time / 10, (value) => value), "M0.0 1.0L25.0 1.0M300.0 1.0L325.0 1.0");
});

test("the first burst does not set the chart's top", () => {
  const points = [{ time: 0, buffer: 3, rate: 450, burst: true }, { time: 1000, buffer: 4, rate: 30 }];
  assert.equal(topOf(points, "rate", 50), 50);
  assert.equal(topOf(points, "buffer", 1), 5);
});

/** A server that knows one key. `answers` says, by what was sent as the bearer, which answer it gets and when. */
function served(context, answers) {
  const asked = [];
  context.mock.method(globalThis, "fetch", async (url, { headers = {} }) => {
    const bearer = headers.Authorization?.replace("Bearer ", "");
    asked.push(`${url.pathname} ${bearer}`);
    const body = await answers(bearer, url.pathname);
    return new Response(JSON.stringify(body ?? {}), { status: body ? 200 : 401 });
  });
  return { asked, access: new Access("http://server/") };
}

test("a token that the server has forgotten is asked for again, and only a wrong key is wrong", async (context) => {
  let made = 0, known = "";
  const { asked, access } = served(context, (bearer) => {
    if (bearer === "key") return { token: known = `token-${++made}`, ttl_s: 600 };
    return bearer === known ? { voices: [] } : null;
  });
  await access.use("key");
  await access.voices();
  known = "";
  assert.deepEqual(await access.voices(), { voices: [] });
  assert.deepEqual(asked.slice(2), ["/v1/voices token-1", "/v1/tokens key", "/v1/voices token-2"]);
  known = "";
  assert.equal(await access.withToken(async (token) => {
    if (token !== "token-3") throw new AccessError("unauthorized");
    return "file";
  }), "file");
  await assert.rejects(access.withToken(async () => { throw new AccessError("unauthorized"); }), { code: "unauthorized" });
});

test("a key that is sent while another one is asked about is not taken for that one", async (context) => {
  let answer;
  const { access } = served(context, (bearer) =>
    bearer === "right" ? { token: "good" } : new Promise((resolve) => { answer = resolve; }));
  const wrong = assert.rejects(access.use("wrong"), { code: "unauthorized" });
  await access.use("right");
  answer(null);
  await wrong;
  assert.equal(await access.token(), "good");
});

test("what cannot be a key is none, and nobody is asked", async (context) => {
  const { asked, access } = served(context, () => ({}));
  for (const key of ["", "钥匙", "two words"]) await assert.rejects(access.use(key), { code: "unauthorized" });
  assert.deepEqual(asked, []);
});

test("an Opus file has no type that would change its name", async (t) => {
  t.mock.method(globalThis, "fetch", async () => new Response("OggS"));
  const asked = { text: "Hello.", format: "opus" };
  const file = await download(new URL("http://server.test/v1/speak"), asked, null, () => {}, new AbortController().signal);
  assert.equal(file.type, "application/octet-stream");
  assert.equal(await file.text(), "OggS");
});
