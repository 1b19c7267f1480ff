// What a session does, message by message.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { crc32 } from "node:zlib";
import { test } from "node:test";
import { Session } from "../../../demo_web/session.js";
import { CHAR_SAMPLES } from "./fake_server.mjs";
import { Simulation } from "./simulation.mjs";

const LIMITS = { resume_ttl_ms: 60_000, text_window_chars: 1_000, queued_utterances: 2 };
const EMPTY = createHash("sha256").digest("hex");

/** A session, and what it says; `open` fields, then `opened` fields. */
class Desk {
  constructor(open = {}, opened = {}, options = {}) {
    this.session = new Session(open, { random: () => 0.5, ...options });
    this.effects = [];
    this.opened = {
      type: "opened",
      session: "s",
      token: "t",
      epoch: 0,
      generation: 1,
      config: { sample_rate: 24_000, max_lead_ms: 4_000 },
      limits: LIMITS,
      ...opened,
    };
    this.event = 0;
  }

  do(effects) {
    this.effects.push(...effects);
    return effects;
  }

  open(now = 0) {
    this.do(this.session.start(now));
    this.do(this.session.connected(1, now));
    this.get(this.opened, now);
    this.effects = [];
    return this;
  }

  get(message, now = 0, connection = 1) {
    return this.do(this.session.text(connection, JSON.stringify(message), now));
  }

  /** An event of the server, with its number. */
  tell(message, now = 0) {
    return this.get({ event: ++this.event, utterance: 1, ...message }, now);
  }

  frame(first, samples, now = 0, { connection = 1, generation = 1, utterance = 1 } = {}) {
    const data = Buffer.alloc(28 + 2 * samples);
    data.writeUInt16BE(0x0101, 0);
    data.writeUInt32BE(generation, 4);
    data.writeUInt32BE(utterance, 8);
    data.writeUInt32BE(first, 16);
    data.writeUInt32BE(samples, 20);
    data.writeUInt32BE(crc32(data.subarray(28)), 24);
    return this.do(this.session.binary(connection, new Uint8Array(data), now));
  }

  /** Messages sent, without acks and seq; the list begins anew. */
  said(types = null) {
    const sent = this.effects.filter((each) => each.type === "send").map((each) => JSON.parse(each.data));
    this.effects = [];
    return sent
      .filter((each) => (types ? types.includes(each.type) : each.type !== "ack"))
      .map(({ seq: _, ...rest }) => rest);
  }

  failure() {
    return this.effects.find((each) => each.state === "failed")?.detail;
  }

  /** Lets time pass, tick by tick. */
  wait(from, until) {
    let due;
    while ((due = this.session.deadline) !== null && due <= until) this.do(this.session.tick(Math.max(due, from)));
  }
}

test("what is written before the session is open is said then, in order", () => {
  const desk = new Desk({ voice: "alice" });
  const { session } = desk;
  desk.do(session.start(0));
  desk.do(session.begin({ speed: 1.5 }, 0));
  desk.do(session.write("Hello.", 0));
  desk.do(session.end(0));
  assert.equal(session.newest, 1);
  assert.equal(session.unfinished, true);
  desk.do(session.connected(1, 10));
  desk.get(desk.opened, 20);
  assert.deepEqual(desk.said(), [
    { type: "open", voice: "alice", max_buffer_delay_ms: null },
    { type: "start", utterance: 1, speed: 1.5 },
    { type: "text", text: "Hello." },
    { type: "end" },
  ]);
  assert.equal(session.state, "ready");
  assert.equal(session.rtt, 10);
});

test("a soft flush follows 400 ms without text, once", () => {
  const desk = new Desk().open();
  desk.do(desk.session.begin({}, 0));
  desk.do(desk.session.write("Well.", 100));
  desk.wait(100, 499);
  assert.deepEqual(desk.said(["flush"]), []);
  desk.wait(499, 1_000);
  assert.deepEqual(desk.said(["flush"]), [{ type: "flush", soft: true }]);
});

test("text waits for room, cut between characters", () => {
  const desk = new Desk({}, { limits: { ...LIMITS, text_window_chars: 5 } }).open();
  desk.do(desk.session.begin({}, 0));
  desk.do(desk.session.write("a👋b👋c👋d", 0));
  desk.do(desk.session.end(0));
  assert.deepEqual(desk.said(["text", "end"]), [{ type: "text", text: "a👋b👋c" }]);
  desk.get({ type: "seq_ack", seq: 2, room: 1 });
  assert.deepEqual(desk.said(), [{ type: "text", text: "👋" }]);
  desk.get({ type: "seq_ack", seq: 3, room: 5 });
  assert.deepEqual(desk.said(), [{ type: "text", text: "d" }, { type: "end" }]);
});

test("a character may come in halves; half of one is none", () => {
  const desk = new Desk().open();
  desk.do(desk.session.begin({}, 0));
  desk.do(desk.session.write("a\ud83d", 0));
  desk.do(desk.session.write("\udc4bb\udc4b", 0));
  desk.do(desk.session.write("\ud83d", 0));
  desk.do(desk.session.end(0));
  assert.equal(
    desk
      .said(["text"])
      .map((each) => each.text)
      .join(""),
    "a👋b\ufffd\ufffd",
  );
});

test("what the server would refuse fails here with the field's name", () => {
  const desk = new Desk({ speed: 9 });
  desk.do(desk.session.start(0));
  assert.equal(desk.failure().field, "open.speed");
  assert.equal(desk.session.deadline, null);
});

test("an utterance with a wrong field is none; what is spoken goes on", () => {
  const desk = new Desk().open();
  desk.do(desk.session.begin({}, 0));
  desk.do(desk.session.write("One ", 0));
  desk.effects = [];
  const [refused, ...more] = desk.session.begin({ pitch: 7 }, 1);
  assert.deepEqual([refused.type, refused.code, refused.field, more], ["refused", "bad_message", "start.pitch", []]);
  desk.do(desk.session.write("two.", 2));
  assert.deepEqual(desk.said(), [{ type: "text", text: "two." }]);
  assert.equal(desk.session.newest, 1);
});

test("what was not meant to happen ends the session, with all that it does", () => {
  const desk = new Desk().open();
  const effects = desk.session.begin(new Proxy({}, { ownKeys: () => assert.fail("no fields") }), 1);
  assert.deepEqual([effects.at(-1).state, effects.at(-1).reason], ["failed", "internal"]);
  assert.deepEqual(desk.session.write("x", 2), []);
});

test("nothing is due for text of an utterance that the server ended", () => {
  const desk = new Desk().open();
  desk.do(desk.session.begin({}, 0));
  desk.do(desk.session.write("Hi", 4));
  desk.tell({ type: "cancelled", sample: 0, heard_text_end: 0 }, 10);
  desk.wait(10, 1_000);
  assert.ok(desk.session.deadline > 1_000);
});

test("a tick that is only as late as a hidden page's forgives no silence", () => {
  for (const [late, lateTickMs, state] of [
    [1_000, 1_500, "reconnecting"],
    [1_000, 250, "ready"],
    [2_000, 1_500, "ready"],
  ]) {
    const desk = new Desk({}, {}, { lateTickMs }).open();
    desk.do(desk.session.begin({}, 0));
    desk.do(desk.session.end(0));
    desk.do(desk.session.tick(1_000)); // acks
    desk.do(desk.session.tick(1_199 + late));
    assert.equal(desk.session.state, state, `${late} of ${lateTickMs}`);
  }
});

test("no engine is ready: another session says the same, after the time, as often as it takes", () => {
  for (const reason of ["loading", "stopping"]) {
    const desk = new Desk().open();
    desk.do(desk.session.begin({ speed: 2 }, 0));
    desk.do(desk.session.write("Hello.", 0));
    desk.do(desk.session.end(0));
    let now = 10;
    for (let connection = 1; connection < 8; connection++) {
      desk.effects = [];
      desk.get({ type: "busy", retry_after_ms: 3_000, reason }, now, connection);
      desk.wait(now, now + 2_990);
      assert.deepEqual(
        desk.effects.map((each) => each.state ?? each.type),
        ["drop", "reconnecting"],
      );
      desk.wait(now + 2_990, now + 3_000);
      now += 3_000;
      desk.do(desk.session.connected(connection + 1, now));
      desk.get({ ...desk.opened, session: `s${connection}` }, now, connection + 1);
      assert.deepEqual(desk.said(), [
        { type: "open", max_buffer_delay_ms: null },
        { type: "start", utterance: 1, speed: 2 },
        { type: "text", text: "Hello." },
        { type: "end" },
      ]);
    }
    assert.equal(desk.session.state, "ready");
    assert.equal(desk.session.statistics.restarts, 0);
  }
});

test("a server that starts again and lost the session is waited for, and the rest is said", () => {
  const desk = new Desk().open();
  desk.do(desk.session.begin({}, 0));
  desk.do(desk.session.write("Hello. More.", 0));
  desk.do(desk.session.end(0));
  desk.tell({ type: "segment_begin", segment: 0, start: 0, end: 7, first_sample: 0 }, 2);
  desk.frame(0, 960, 3);
  const busy = { type: "busy", retry_after_ms: 2_000, reason: "loading" };
  desk.do(desk.session.closed(1, 1012, "", 10));
  desk.get(busy, 11, 2); // before it was asked
  desk.wait(11, 2_011);
  desk.do(desk.session.connected(3, 2_012));
  desk.get({ type: "resume_failed", reason: "unknown" }, 2_013, 3);
  desk.effects = [];
  desk.get(busy, 2_014, 3);
  desk.wait(2_014, 4_013);
  assert.deepEqual(desk.said(), []);
  desk.wait(4_013, 4_014);
  desk.do(desk.session.connected(4, 4_020));
  desk.effects = [];
  desk.get({ ...desk.opened, session: "t" }, 4_021, 4);
  assert.deepEqual(
    desk.effects.filter((each) => each.type === "restarted"),
    [{ type: "restarted", utterance: 1, sample: 960, position: 0 }],
  );
  assert.deepEqual(
    desk.said().map((each) => each.type),
    ["start", "text", "end"],
  );
});

test("a server that only starts is waited for also at first, but not for ever", () => {
  const loading = (desk, until) => {
    desk.do(desk.session.start(0));
    desk.do(desk.session.begin({}, 0));
    let now = 0;
    for (let connection = 1; now < until && !desk.failure(); connection++) {
      desk.do(desk.session.connected(connection, now));
      desk.get({ type: "busy", retry_after_ms: 5_000, reason: "loading", message: "starting" }, now, connection);
      now += 5_000;
      desk.wait(now, now);
    }
    return now;
  };
  const soon = new Desk();
  const now = loading(soon, 60_000);
  assert.equal(soon.session.state, "connecting");
  soon.do(soon.session.connected(13, now));
  soon.get(soon.opened, now, 13);
  assert.deepEqual(soon.said(["start"]), [{ type: "start", utterance: 1 }]);
  const never = new Desk();
  assert.equal(loading(never, 200_000), 125_000);
  assert.deepEqual([never.failure().code, never.failure().reason], ["busy", "loading"]);
});

test("who is unauthorized asks once more, with another token", () => {
  const error = { type: "error", code: "unauthorized", message: "expired" };
  const first = new Desk();
  first.do(first.session.start(0));
  first.do(first.session.connected(1, 1));
  first.get(error, 2);
  assert.equal(first.failure(), undefined);
  first.wait(2, 600);
  first.get(error, 601, 2);
  assert.equal(first.failure().code, "unauthorized");
  const later = new Desk().open();
  later.do(later.session.closed(1, 1006, "", 0));
  later.do(later.session.connected(2, 1));
  later.get(error, 2, 2);
  assert.equal(later.session.state, "reconnecting");
  later.wait(2, 600);
  later.get(error, 601, 3);
  assert.equal(later.failure().code, "unauthorized");
});

test("who could not connect is told when to come again", () => {
  const desk = new Desk().open();
  desk.do(desk.session.closed(1, 1006, "", 0));
  desk.do(desk.session.refused(2, { code: "loading", message: "", retryable: true, retryAfterMs: 3_000 }, 5));
  desk.effects = [];
  desk.wait(5, 3_004);
  assert.deepEqual(desk.effects, []);
  desk.wait(3_004, 3_005);
  assert.deepEqual(desk.effects, [{ type: "connect", connection: 3 }]);
});

test("an ack follows 32 KiB, 100 ms, the timer, and the end", () => {
  const desk = new Desk({ max_lead_ms: null }, { config: { sample_rate: 24_000, max_lead_ms: null } }).open();
  desk.do(desk.session.begin({}, 0));
  desk.tell({ type: "segment_begin", segment: 0, start: 0, end: 2, first_sample: 0 }, 10);
  desk.said();
  desk.frame(0, 960, 20);
  assert.deepEqual(desk.said(["ack"]), []);
  desk.frame(960, 16_000, 30);
  assert.deepEqual(
    desk.said(["ack"]).map((each) => each.next_sample),
    [16_960],
  );
  desk.frame(16_960, 960, 100);
  desk.frame(17_920, 960, 131);
  assert.deepEqual(
    desk.said(["ack"]).map((each) => each.next_sample),
    [18_880],
  );
  desk.wait(131, 340);
  const [ack] = desk.said(["ack"]);
  assert.deepEqual([ack.next_sample, ack.event, ack.generation, ack.utterance], [18_880, 1, 1, 1]);
  desk.session.visible(false);
  desk.tell({ type: "cancelled", sample: 0, heard_text_end: 0 }, 345);
  assert.equal(desk.said(["ack"])[0].visible, false);
});

test("played is told until all was heard, then no more", () => {
  const simulation = new Simulation({}).start();
  const { session } = simulation;
  simulation.at(1, () => simulation.do(session.begin({}, 1)));
  simulation.at(2, () => (simulation.say(1, "One two three."), simulation.do(session.end(2))));
  simulation.run(500);
  assert.equal(session.unfinished, false);
  const acks = () =>
    simulation.effects
      .filter((each) => each.type === "send")
      .map((each) => JSON.parse(each.data))
      .filter((each) => each.type === "ack");
  const before = acks().length;
  simulation.do(session.played(1, 600.7, 44.4, 1, 500));
  simulation.run(1_100);
  assert.deepEqual(acks().at(-1).played_sample, 600);
  assert.deepEqual([acks().at(-1).buffered_ms, acks().at(-1).stalls], [44, 1]);
  assert.ok(acks().length > before);
  simulation.do(session.played(1, 14 * CHAR_SAMPLES, 0, 1, 1_100));
  assert.equal(acks().at(-1).played_sample, 14 * CHAR_SAMPLES);
  const after = acks().length;
  simulation.run(5_000);
  assert.equal(acks().length, after);
  assert.deepEqual(simulation.server.errors, []);
});

test("silence of the server: a second connection, and the first one is kept", () => {
  const desk = new Desk().open();
  desk.do(desk.session.begin({}, 0));
  desk.effects = [];
  desk.wait(0, 1_199);
  assert.deepEqual(
    desk.effects.filter((each) => each.type !== "send"),
    [],
  );
  desk.wait(1_199, 1_210);
  assert.deepEqual(
    desk.effects.filter((each) => each.type !== "send"),
    [
      { type: "state", state: "reconnecting", reason: "silent", detail: null },
      { type: "connect", connection: 2 },
    ],
  );
  // the first one speaks: it is asked whether it hears, too
  desk.effects = [];
  desk.get({ type: "heartbeat" }, 1_300);
  assert.deepEqual(desk.said(["ping"]), [{ type: "ping", id: 1 }]);
  desk.get({ type: "heartbeat" }, 1_310);
  assert.deepEqual(desk.said(["ping"]), [], "once");
  desk.get({ type: "pong", id: 1 }, 1_320);
  assert.ok(desk.effects.some((each) => each.state === "ready" && each.reason === "recovered"));
  assert.ok(desk.effects.some((each) => each.type === "drop" && each.connection === 2 && each.code === 4000));
  assert.equal(desk.session.statistics.resumes, 0);
});

test("resume: what it has, then what the server lacks, on the new connection", () => {
  const desk = new Desk().open();
  const { session } = desk;
  desk.do(session.begin({}, 0));
  desk.do(session.write("Hello. ", 0));
  desk.get({ type: "seq_ack", seq: 2, room: 900 }, 1);
  desk.tell({ type: "segment_begin", segment: 0, start: 0, end: 7, first_sample: 0 }, 2);
  desk.frame(0, 960, 3);
  desk.do(session.played(1, 240, 30, 0, 4));
  desk.do(session.closed(1, 1006, "", 5));
  desk.do(session.write("More.", 6));
  desk.do(session.end(7));
  desk.effects = [];
  desk.do(session.connected(2, 10));
  assert.deepEqual(desk.said(), [
    {
      type: "resume",
      session: "s",
      token: "t",
      epoch: 0,
      generation_seen: 1,
      utterance: 1,
      next_sample: 960,
      events_seen: 1,
      played_sample: 240,
      have_decoder: true,
    },
  ]);
  const resumed = {
    type: "resumed",
    generation: 2,
    epoch: 0,
    utterance: 1,
    from_sample: 960,
    synthesised_end: 960,
    new_token: "u",
    mode: "block",
    seq: 2,
    room: 900,
  };
  desk.get(resumed, 20, 2);
  assert.ok(desk.effects.every((each) => each.type !== "send" || each.connection === 2));
  assert.deepEqual(desk.said(), [{ type: "text", text: "More." }, { type: "end" }]);
  assert.deepEqual(session.mode, { mode: "block", reason: "resumed" });
  desk.frame(960, 960, 21, { generation: 1 }); // the old connection's last words
  assert.deepEqual(desk.effects, []);
  const [audio] = desk.frame(960, 960, 22, { connection: 2, generation: 2 });
  assert.deepEqual([audio.type, audio.first, audio.count], ["audio", 960, 960]);
});

test("attempts: every half second, at most three, ever less often, until it takes too long", () => {
  const desk = new Desk().open();
  desk.do(desk.session.closed(1, 1006, "", 0));
  const times = [];
  let open = 1;
  for (let due; (due = desk.session.deadline) !== null;) {
    for (const effect of desk.do(desk.session.tick(due))) {
      if (effect.type === "connect") times.push(due);
      open += effect.type === "connect" ? 1 : effect.type === "drop" ? -1 : 0;
      assert.ok(open <= 3);
    }
  }
  const gaps = times.slice(1).map((time, index) => time - times[index]);
  assert.deepEqual(gaps.slice(0, 10), Array(10).fill(500));
  assert.ok(Math.max(...gaps) === 8_000 && gaps.length < 90);
  assert.equal(desk.failure().code, "unreachable");
  assert.equal(desk.failure().retryable, true);
});

test("busy: at first it is told, later it is waited for", () => {
  const desk = new Desk();
  desk.do(desk.session.start(0));
  desk.do(desk.session.connected(1, 1));
  desk.get({ type: "busy", retry_after_ms: 3_000, reason: "quota", message: "no" }, 2);
  const told = { code: "busy", message: "no", field: null, retryable: true, retryAfterMs: 3_000, reason: "quota" };
  assert.deepEqual(desk.failure(), told);
  const other = new Desk().open();
  other.do(other.session.closed(1, 1012, "", 0));
  other.effects = [];
  other.do(other.session.connected(2, 1));
  other.get({ type: "busy", retry_after_ms: 3_000 }, 2, 2);
  other.effects = [];
  other.wait(2, 3_000);
  assert.deepEqual(other.effects, []);
  other.wait(3_000, 3_010);
  assert.deepEqual(other.effects, [{ type: "connect", connection: 3 }]);
});

test("the server's error ends the session", () => {
  const desk = new Desk().open();
  desk.get({ type: "error", code: "unknown_voice", message: "none", field: "open.voice" });
  assert.deepEqual(
    desk.effects.map((each) => each.type),
    ["drop", "state"],
  );
  assert.deepEqual(
    [desk.effects[0].code, desk.failure().code, desk.failure().field],
    [1000, "unknown_voice", "open.voice"],
  );
  assert.deepEqual(desk.session.write("x", 1), []);
  assert.deepEqual(desk.session.close(1), []);
});

test("nobody answers: it says so after ten seconds, and asks one connection at a time", () => {
  const desk = new Desk();
  desk.do(desk.session.start(0));
  desk.do(desk.session.refused(1, { code: "unreachable", message: "refused", retryable: true }, 5));
  desk.wait(5, 600);
  assert.deepEqual(
    desk.effects.filter((each) => each.type === "connect").map((each) => each.connection),
    [1, 2],
  );
  desk.wait(600, 20_000);
  assert.equal(desk.failure().code, "unreachable");
  const refused = new Desk();
  refused.do(refused.session.start(0));
  refused.do(refused.session.refused(1, { code: "unauthorized", message: "no", retryable: false }, 5));
  assert.equal(refused.failure().code, "unauthorized");
});

test("no second utterance more than the server takes, none while it goes away", () => {
  const desk = new Desk().open();
  for (let each = 0; each < 3; each++) {
    desk.do(desk.session.begin({}, 0));
    desk.do(desk.session.end(0));
  }
  assert.deepEqual(
    desk.said(["start"]).map((each) => each.utterance),
    [1, 2],
  );
  desk.get({ type: "goaway", deadline_ms: 1_000 });
  desk.tell({ type: "done", samples: 0, digest: EMPTY, wire_digest: EMPTY, statistics: {} }, 1);
  desk.tell({ type: "done", utterance: 2, samples: 0, digest: EMPTY, wire_digest: EMPTY, statistics: {} }, 1);
  assert.deepEqual(desk.said(["start"]), []);
  desk.do(desk.session.closed(1, 1012, "", 2));
  assert.ok(desk.effects.some((each) => each.state === "reconnecting" && each.reason === "stopped"));
  desk.do(desk.session.connected(2, 3));
  desk.effects = [];
  const resumed = {
    type: "resumed",
    generation: 2,
    epoch: 1,
    utterance: 0,
    from_sample: 0,
    synthesised_end: 0,
    new_token: "u",
    mode: "stream",
    seq: 4,
    room: 900,
  };
  desk.get(resumed, 4, 2);
  assert.deepEqual(desk.said(), [{ type: "start", utterance: 3 }, { type: "end" }]);
});

test("cancel: before it is open, while it is written, while it plays, when it is over", () => {
  const desk = new Desk();
  desk.do(desk.session.start(0));
  desk.do(desk.session.begin({}, 0));
  desk.do(desk.session.write("Hello.", 0));
  const [early] = desk.session.cancel(1, null, 1);
  assert.deepEqual([early.message.type, early.message.sample, early.message.utterance], ["cancelled", 0, 1]);
  assert.equal(desk.session.unfinished, false);

  for (const [when, played] of [
    [30, 0],
    [70, 240],
    [600, 480],
  ]) {
    const simulation = new Simulation({}).start();
    const { session } = simulation;
    simulation.do(session.begin({}, 0));
    simulation.say(1, "One two three. Four five six.");
    if (when > 50) simulation.do(session.end(0));
    simulation.run(when);
    const before = simulation.of(1).samples.length;
    simulation.do(session.cancel(null, played, when));
    simulation.run(2_000);
    const heard = simulation.of(1);
    assert.equal(heard.samples.length, before, "no audio after the cancel");
    assert.equal(heard.over.type, "cancelled", `at ${when}`);
    assert.equal(heard.over.heard_text_end, Math.floor(Math.min(played, before) / CHAR_SAMPLES));
    assert.deepEqual(session.cancel(1, 0, 2_000), []);
    assert.deepEqual(simulation.server.errors, []);
    simulation.do(session.begin({}, 2_000));
    simulation.say(2, "Yes?");
    simulation.do(session.end(2_000));
    simulation.run(4_000);
    simulation.check(2);
  }
});

test("cancel during an outage is said after it; where the session is gone, here", () => {
  for (const fault of ["cut", "forget"]) {
    const simulation = new Simulation({ faults: { s9: fault } }).start();
    const { session } = simulation;
    simulation.do(session.begin({}, 0));
    simulation.say(1, "One two three. Four five six.");
    simulation.do(session.begin({}, 0));
    simulation.say(2, "Other.");
    simulation.run(95);
    simulation.at(115, () => simulation.do(session.cancel(null, 0, 115)));
    simulation.run(4_000);
    assert.ok(
      simulation.states.some((each) => each.startsWith("reconnecting")),
      fault,
    );
    assert.equal(simulation.of(1).over?.type, "cancelled");
    assert.equal(simulation.of(2).over?.type, "cancelled");
    assert.equal(session.unfinished, false);
    assert.deepEqual(simulation.server.errors, []);
  }
});

test("another session goes on from the word in which audio broke off", () => {
  const text = "👋 one two three four.";
  const simulation = new Simulation({ delay: 0, faults: { s9: "forget" } }).start();
  const { session } = simulation;
  simulation.do(session.begin({ speed: 0.5 }, 0));
  simulation.say(1, text);
  simulation.do(session.end(0));
  simulation.run(4_000);
  simulation.check(1);
  const [restarted] = simulation.effects.filter((each) => each.type === "restarted");
  assert.deepEqual([restarted.sample, restarted.position], [1_200, 10]); // in "three"
  assert.equal(session.statistics.restarts, 1);
  const starts = simulation.effects
    .filter((each) => each.type === "send")
    .map((each) => JSON.parse(each.data))
    .filter((each) => each.type === "start");
  assert.deepEqual(
    starts.map((each) => [each.utterance, each.speed]),
    [
      [1, 0.5],
      [1, 0.5],
    ],
  );
  assert.equal(simulation.server.opens[1].voice, "tone", "the voice that it had");
  const words = simulation
    .of(1)
    .events.filter((each) => each.type === "timing")
    .flatMap((each) => each.words);
  assert.deepEqual(words.at(-1), {
    text: "four.",
    start: 16,
    end: 21,
    first_sample: 1_200 + 6 * CHAR_SAMPLES,
    end_sample: 1_200 + 11 * CHAR_SAMPLES,
  });
});

test("what the server contradicts itself in ends the session", () => {
  const cases = {
    "a frame of a later generation": (desk) => desk.frame(0, 10, 0, { generation: 2 }),
    "a frame of no utterance": (desk) => desk.frame(0, 10, 0, { utterance: 9 }),
    "a broken frame": (desk) => desk.do(desk.session.binary(1, new Uint8Array(30), 0)),
    "no JSON": (desk) => desk.do(desk.session.text(1, "{", 0)),
    "opened again": (desk) => desk.get(desk.opened),
    "an ack of what was not said": (desk) => desk.get({ type: "seq_ack", seq: 99, room: 1 }),
    "the end of no segment": (desk) => desk.tell({ type: "segment_end", segment: 5, samples: 0, digest: EMPTY }),
    "a wrong digest": (desk) =>
      desk.tell({ type: "done", samples: 0, digest: "0".repeat(64), wire_digest: EMPTY, statistics: {} }),
    "a policy close": (desk) => desk.do(desk.session.closed(1, 1008, "no", 0)),
  };
  for (const [name, does] of Object.entries(cases)) {
    const desk = new Desk().open();
    desk.do(desk.session.begin({}, 0));
    does(desk);
    assert.equal(desk.failure()?.code, "misbehaved", name);
  }
});

test("a gap is asked for again, once", () => {
  const desk = new Desk().open();
  desk.do(desk.session.begin({}, 0));
  desk.tell({ type: "segment_begin", segment: 0, start: 0, end: 7, first_sample: 0 }, 1);
  desk.frame(960, 960, 2);
  assert.ok(desk.effects.some((each) => each.type === "drop" && each.connection === 1 && each.code === 4000));
  desk.do(desk.session.connected(2, 3));
  const resumed = {
    type: "resumed",
    generation: 2,
    epoch: 0,
    utterance: 1,
    from_sample: 0,
    synthesised_end: 960,
    new_token: "u",
    mode: "block",
    seq: 1,
    room: 900,
  };
  desk.get(resumed, 4, 2);
  desk.frame(960, 960, 5, { connection: 2, generation: 2 });
  assert.equal(desk.failure().code, "misbehaved");
});

test("close: over at once, on every connection", () => {
  const desk = new Desk().open();
  desk.do(desk.session.begin({}, 0));
  desk.wait(0, 1_300);
  desk.effects = [];
  desk.do(desk.session.close(1_300));
  assert.deepEqual(
    desk.effects
      .filter((each) => each.type === "drop")
      .map((each) => [each.connection, each.code])
      .sort(),
    [
      [1, 1000],
      [2, 1000],
    ],
  );
  assert.deepEqual(desk.effects.at(-1), { type: "state", state: "closed", reason: "", detail: null });
  assert.equal(desk.session.deadline, null);
  assert.deepEqual(desk.session.text(1, "{}", 1_301), []);
});

test("what is known already is cut off, however much of a frame it is", () => {
  const desk = new Desk().open();
  desk.do(desk.session.begin({}, 0));
  desk.tell({ type: "segment_begin", segment: 0, start: 0, end: 7, first_sample: 0 }, 1);
  desk.frame(0, 960, 2);
  assert.deepEqual(desk.frame(480, 480, 3), []);
  const [audio] = desk.frame(720, 960, 4);
  assert.deepEqual([audio.first, audio.count, audio.payload.length], [960, 720, 1_440]);
});

test("a late repeat of an ack gives no room", () => {
  const desk = new Desk({}, { limits: { ...LIMITS, text_window_chars: 4 } }).open();
  desk.do(desk.session.begin({}, 0));
  desk.do(desk.session.write("abcd", 0));
  desk.get({ type: "seq_ack", seq: 2, room: 0 });
  desk.get({ type: "seq_ack", seq: 1, room: 4 });
  desk.effects = [];
  desk.do(desk.session.write("e", 1));
  assert.deepEqual(desk.said(), []);
});

test("a server that lost the end of what it had taken gets a new session, on another connection", () => {
  const desk = new Desk().open();
  desk.do(desk.session.begin({}, 0));
  desk.do(desk.session.write("Hello.", 0));
  desk.get({ type: "seq_ack", seq: 2, room: 900 });
  desk.do(desk.session.closed(1, 1006, "", 5));
  desk.do(desk.session.connected(2, 10));
  desk.effects = [];
  const resumed = { type: "resumed", generation: 2, epoch: 1, utterance: 0, from_sample: 0, synthesised_end: 0 };
  desk.get({ ...resumed, new_token: "u", mode: "block", seq: 1, room: 900 }, 20, 2);
  assert.deepEqual(desk.effects, [{ type: "drop", connection: 2, code: 4000 }]);
  desk.wait(20, 600);
  desk.do(desk.session.connected(3, 600));
  assert.deepEqual(desk.said(["open"]).length, 1);
  desk.get({ ...desk.opened, session: "other" }, 610, 3);
  assert.deepEqual(desk.said(), [
    { type: "start", utterance: 1 },
    { type: "text", text: "Hello." },
    { type: "flush", soft: true }, // the writer had paused meanwhile
  ]);
});

test("a first session whose token is always promised for later is not waited for without end", () => {
  const session = new Session({}, { reconnectMs: 5_000, random: () => 0.5 });
  const later = { code: "unavailable", message: "later", retryable: true, retryAfterMs: 1_000 };
  let [now, attempts, effects] = [0, 0, session.start(0)];
  while (session.state !== "failed" && now < 60_000) {
    for (const { type, connection } of effects.splice(0)) {
      if (type !== "connect") continue;
      attempts++;
      effects.push(...session.refused(connection, later, now));
    }
    if (session.state === "failed") break;
    now = Math.max(now + 1, session.deadline);
    effects.push(...session.tick(now));
  }
  assert.equal(session.state, "failed");
  assert.ok(now >= 5_000 && now < 8_000, `${now} ms`);
  assert.ok(attempts <= 8, `${attempts} attempts`);
  assert.deepEqual(effects.filter(({ type }) => type === "state").at(-1)?.detail?.code, "unavailable");
});
