// The shell around sessions: what it does with tokens, sound and utterances when something goes wrong. Its sockets are fakes.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { afterEach, beforeEach, test } from "node:test";
import { crc32 } from "node:zlib";
import { AccessError } from "../../../demo_web/access.js";
import { Connection } from "../../../demo_web/connection.js";

/** Turn by turn: what waits for several timers, one after the other, comes to its end also where this process was held up. */
async function sleep(ms) {
  const until = performance.now() + ms;
  for (let turn = 0; turn < Math.min(ms, 50) || performance.now() < until; turn++) {
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}
const sha = (data) => createHash("sha256").update(data).digest();

/** A server's end: opens, acks, and says what a test has it say. */
class Socket {
  static OPEN = 1;
  static all = [];
  static refusing = false;
  readyState = 0;
  protocol = "cosystream.v1";
  sent = [];

  constructor(url, protocols) {
    this.token = protocols[1]?.replace("cosystream.token.", "");
    Socket.all.push(this);
    setTimeout(() => {
      if (this.readyState) return;
      this.readyState = Socket.refusing ? 3 : 1;
      if (Socket.refusing) this.onclose({ code: 1006, reason: "" });
      else this.onopen();
    }, 2);
  }

  send(data) {
    const message = JSON.parse(data);
    this.sent.push(message);
    if (message.type === "open") setTimeout(() => this.say({ ...OPENED, config: { ...OPENED.config, ...message } }), 1);
    if (message.seq) setTimeout(() => this.say({ type: "seq_ack", seq: message.seq, room: 1_000 }), 1);
  }

  say(message) {
    if (this.readyState === 1) this.onmessage({ data: JSON.stringify(message) });
  }

  frame(codec, flags, count, payload) {
    const header = Buffer.alloc(28);
    header.writeUInt8(1, 0);
    header.writeUInt8(codec, 1);
    header.writeUInt16BE(flags, 2);
    header.writeUInt32BE(1, 4);
    header.writeUInt32BE(1, 8);
    header.writeUInt32BE(count, 20);
    header.writeUInt32BE(crc32(payload), 24);
    this.onmessage({ data: new Uint8Array(Buffer.concat([header, payload])).buffer });
  }

  lose(code) {
    this.readyState = 3;
    this.onclose({ code, reason: "" });
  }

  close() {
    this.readyState = 3;
  }
}

const OPENED = {
  type: "opened", session: "s", token: "t", epoch: 0, generation: 1, config: { sample_rate: 24_000, max_lead_ms: 4_000 },
  limits: { resume_ttl_ms: 60_000 },
};

let told, played, tokens, answer, connection, port;

/** Set up; `token` gives what the page answers. */
async function setUp(token = () => ({ token: null })) {
  [told, played, tokens, answer] = [[], [], 0, token];
  connection = new Connection((message) => {
    told.push(message);
    if (message.type !== "token") return;
    tokens++;
    const { delay = 0, ...fields } = answer();
    setTimeout(() => connection.receive({ type: "token", request: message.request, ...fields }), delay);
  });
  const { port1, port2 } = new MessageChannel();
  port = port2;
  port.onmessage = ({ data }) => played.push(`${data.type} ${data.id}`);
  connection.receive({ type: "setup", url: "ws://server", playout: port1 });
}

function begin(id, open = {}, start = {}) {
  connection.receive({ type: "begin", id, open: { format: "pcm", ...open }, start });
  connection.receive({ type: "write", id, text: "Text." });
}

/** All of utterance 1, which has no audio but these packets. */
function done(socket, wire = "", samples = 0) {
  const digest = samples ? sha("x") : sha("");
  if (samples) socket.say({ type: "segment_end", event: 2, utterance: 1, segment: 0, samples, digest: digest.toString("hex") });
  socket.say({
    type: "done", event: samples ? 3 : 1, utterance: 1, samples, digest: sha(samples ? digest : "").toString("hex"),
    wire_digest: sha(wire).toString("hex"), statistics: {},
  });
}

const states = () => told.filter((each) => each.type === "state").map((each) => each.state);
const found = (type) => told.filter((each) => each.type === type);

beforeEach(() => {
  globalThis.WebSocket = Socket;
  Object.assign(Socket, { all: [], refusing: false });
});

afterEach(() => {
  connection.receive({ type: "close" });
  port.close();
  delete globalThis.AudioDecoder;
});

test("a failure names what it ends, also what waits for another configuration, and that is never said", async () => {
  await setUp();
  begin(1);
  connection.receive({ type: "end", id: 1 });
  begin(2);
  begin(3, { mode: "block" });
  await sleep(20);
  done(Socket.all[0]);
  Socket.all[0].say({ type: "busy", retry_after_ms: 5_000, reason: "quota" });
  const failed = found("state").at(-1);
  assert.deepEqual([failed.state, failed.ids], ["failed", [2, 3]]);
  await sleep(20);
  assert.equal(Socket.all.length, 1);
});

test("the rate is that of two seconds, and the last one told is 0", async () => {
  await setUp();
  begin(1);
  connection.receive({ type: "end", id: 1 });
  await sleep(20);
  const [socket] = Socket.all;
  socket.say({ type: "segment_begin", event: 1, utterance: 1, segment: 0, start: 0, end: 5, first_sample: 0 });
  socket.frame(1, 0, 24_000, Buffer.alloc(48_000));
  while (!(found("statistics").at(-1)?.bytes > 48_000)) await sleep(10);
  const first = found("statistics").find(({ bytes }) => bytes > 48_000);
  assert.equal(first.bytesPerSecond, first.bytes / 2);
  connection.receive({ type: "cancel", id: 1, played: 0 });
  socket.say({ type: "cancelled", event: 2, utterance: 1, sample: 0, heard_text_end: 0 });
  await sleep(2_400);
  while (found("statistics").at(-1).bytesPerSecond) await sleep(10);
  const rates = found("statistics").map(({ bytesPerSecond }) => bytesPerSecond);
  const after = rates.slice(rates.indexOf(first.bytesPerSecond));
  assert.ok(after.slice(0, 3).every((rate) => rate > first.bytesPerSecond / 2), String(rates));
  assert.equal(rates.at(-1), 0);
  await sleep(600);
  assert.equal(found("statistics").length, rates.length);
});

test("a page that closes before all is set up makes no connection", async () => {
  globalThis.AudioDecoder = { isConfigSupported: () => sleep(10).then(() => ({ supported: true })) };
  await setUp();
  begin(1);
  connection.receive({ type: "close" });
  await sleep(30);
  assert.deepEqual([Socket.all, told], [[], []]);
  await setUp();
  begin(1);
  await sleep(20);
  begin(2, { mode: "block" });
  connection.receive({ type: "close" });
  connection.receive({ type: "warm", open: {} });
  await sleep(20);
  assert.equal(Socket.all.length, 1);
});

test("Opus that fails when its session is gone ends that utterance alone", async () => {
  let fail;
  globalThis.EncodedAudioChunk = class {};
  globalThis.AudioDecoder = class {
    state = "configured";
    static isConfigSupported = async () => ({ supported: true });
    constructor({ error }) {
      fail = error;
    }
    configure() {}
    decode() {}
    flush = () => new Promise(() => {});
    close() {
      this.state = "closed";
    }
  };
  await setUp();
  begin(1, { format: "opus" });
  connection.receive({ type: "end", id: 1 });
  await sleep(20);
  const [socket] = Socket.all;
  socket.say({ type: "segment_begin", event: 1, utterance: 1, segment: 0, start: 0, end: 5, first_sample: 0 });
  const packets = Buffer.from([0, 3, 1, 2, 3]);
  socket.frame(2, 3, 480, packets);
  done(socket, packets, 480);
  socket.say({ type: "error", code: "idle_timeout", message: "" });
  fail(new Error("taken away"));
  assert.deepEqual(
    found("failure").map(({ code, ids }) => [code, ids]),
    [["no_opus", [1]]],
  );
  begin(2);
  await sleep(20);
  Socket.all[1].say({ type: "segment_begin", event: 1, utterance: 1, segment: 0, start: 0, end: 5, first_sample: 0 });
  Socket.all[1].frame(1, 0, 240, Buffer.alloc(480));
  await sleep(5);
  assert.deepEqual(played, ["begin 1", "complete 1", "begin 2", "audio 2"]);
});

test("a browser that makes no decoder ends that utterance, and the next comes as PCM", async () => {
  for (const where of ["constructor", "configure"]) {
    globalThis.AudioDecoder = class {
      state = "unconfigured";
      static isConfigSupported = async () => ({ supported: true });
      constructor() {
        if (where === "constructor") throw new Error("no more decoders");
      }
      configure() {
        throw new Error("no more decoders");
      }
    };
    await setUp();
    begin(1, { format: "opus" });
    await sleep(20);
    const socket = Socket.all.at(-1);
    socket.say({ type: "segment_begin", event: 1, utterance: 1, segment: 0, start: 0, end: 5, first_sample: 0 });
    socket.frame(2, 3, 480, Buffer.from([0, 3, 1, 2, 3]));
    const { state, ids, detail } = found("state").at(-1);
    assert.deepEqual([state, ids, detail.code, detail.retryable], ["failed", [1], "no_opus", true], where);
    begin(2, { format: "opus" });
    await sleep(20);
    assert.equal(Socket.all.at(-1).sent[0].format ?? "pcm", "pcm");
    connection.receive({ type: "close" });
    port.close();
  }
});

test("what throws keeps no effect behind it from its turn", async () => {
  const { Link } = await import("../../../demo_web/link.js");
  const line = { pass: (_direction, _bytes, act) => act() };
  const network = { url: "ws://server", token: async () => null, used() {}, line };
  const seen = [];
  const link = new Link({ format: "pcm" }, network, (_link, { state }) => {
    seen.push(state);
    if (state === "first") throw new Error("the page's fault");
  });
  const effects = link.session.start(performance.now()).filter(({ type }) => type === "connect");
  assert.throws(() => link.do([{ type: "state", state: "first" }, ...effects, { type: "state", state: "last" }]));
  assert.deepEqual(seen, ["first", "last"]);
  await sleep(5);
  assert.equal(Socket.all.length, 1);
  link.close();
});

test("an utterance is verified also where another configuration comes after it", async () => {
  await setUp();
  begin(1);
  connection.receive({ type: "end", id: 1 });
  begin(2, { mode: "block" });
  await sleep(20);
  done(Socket.all[0]);
  await sleep(20);
  assert.deepEqual(found("verified").map(({ id }) => id), [1]);
  assert.equal(Socket.all.length, 2);
});

test("a token that no handshake has room for is none, and a server that is not there is told of at once", async () => {
  await setUp(() => ({ token: "x".repeat(100_000) }));
  begin(1);
  await sleep(20);
  assert.deepEqual([found("state").at(-1).detail.code, Socket.all.length], ["unauthorized", 0]);
  connection.receive({ type: "close" });
  port.close();
  await setUp();
  Socket.refusing = true;
  begin(1);
  await sleep(700); // two attempts
  assert.ok(Socket.all.length > 1);
  assert.deepEqual(
    found("state").map(({ state, reason }) => [state, reason]),
    [["connecting", ""], ["connecting", "unreachable"]],
  );
});

test("a server that does not answer is told of when it is tried again, one that starts is not called absent", async () => {
  const { Session } = await import("../../../demo_web/session.js");
  const told = (effects) => effects.filter(({ type }) => type === "state").map(({ reason }) => reason);
  const silent = new Session({}, { random: () => 0.5 });
  assert.deepEqual(told(silent.start(0)), [""]);
  assert.deepEqual(told(silent.tick(3_000)), ["unreachable"]);
  assert.deepEqual(told(silent.tick(5_000)), []);
  const loading = new Session({}, { random: () => 0.5 });
  loading.start(0);
  loading.connected(1, 10);
  const busy = JSON.stringify({ type: "busy", retry_after_ms: 1_000, reason: "loading" });
  assert.deepEqual(told(loading.text(1, busy, 20)), ["loading"]);
  const again = loading.tick(loading.deadline);
  assert.deepEqual([again.map(({ type }) => type), told(again)], [["connect"], []]);
});

test("an utterance with a wrong field fails alone", async () => {
  await setUp();
  begin(1);
  begin(2, {}, { speed: 9 });
  begin(3);
  await sleep(20);
  const [failure] = found("failure");
  assert.deepEqual([failure.code, failure.field, failure.ids], ["bad_message", "start.speed", [2]]);
  const starts = Socket.all[0].sent.filter((each) => each.type === "start");
  assert.deepEqual(
    starts.map((each) => each.utterance),
    [1, 2],
  );
  assert.deepEqual(states(), ["connecting", "ready"]);
});

test("attempts that follow each other have one token, each connection its own", async () => {
  await setUp(() => ({ token: `cosyt_${tokens}`, delay: 50 }));
  begin(1);
  await sleep(80);
  Socket.refusing = true;
  Socket.all[0].lose(1006);
  await sleep(1_400); // the second attempt, and the third
  assert.ok(Socket.all.length >= 3);
  assert.equal(tokens, 2);
  assert.deepEqual([...new Set(Socket.all.map((each) => each.token))], ["cosyt_1", "cosyt_2"]);
  Socket.refusing = false;
  await sleep(1_500); // they are not answered
  assert.notEqual(Socket.all.at(-1).token, "cosyt_2");
});

test("a token that cannot be had now is asked for again where there was a session, one that is refused is not", async () => {
  for (const [error, state] of [
    [{ code: "loading", message: "", retryAfterMs: 1_000 }, "reconnecting"],
    [{ ...new AccessError("unauthorized") }, "failed"],
    [{ code: "forbidden", message: "" }, "failed"],
  ]) {
    await setUp(() => (tokens > 1 ? { token: null, error } : { token: "cosyt_a" }));
    begin(1);
    await sleep(20);
    Socket.all.at(-1).lose(1012);
    await sleep(700);
    assert.equal(states().at(-1), state, error.code);
    assert.equal(tokens, 2, "not before the time");
    connection.receive({ type: "close" });
    port.close();
  }
});

test("who gives tokens may be asked again where the server is at fault", async () => {
  const { Access } = await import("../../../demo_web/access.js");
  const { fetch } = globalThis;
  const access = new Access("http://server/");
  const problem = async (status, headers = {}) => {
    globalThis.fetch = async () => new Response(JSON.stringify({ error: { code: "x" } }), { status, headers });
    return access.voices().catch((error) => error);
  };
  try {
    for (const [status, retryable] of [[401, false], [403, false], [404, false], [429, true], [502, true], [503, true]]) {
      assert.equal((await problem(status)).retryable, retryable, `${status}`);
    }
    assert.equal((await problem(431)).code, "unauthorized", "a key that is too long is none");
    assert.equal((await problem(503, { "Retry-After": "2" })).retryAfterMs, 2_000);
    globalThis.fetch = () => Promise.reject(new TypeError("nobody"));
    assert.equal((await access.voices().catch((error) => error)).retryable, true);
  } finally {
    globalThis.fetch = fetch;
  }
});
