// The protocol's test vectors (protocol/vectors), as far as a client reads and writes them.

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { crc32 as zlibCrc32 } from "node:zlib";
import { crc32, Sha256 } from "../../../demo_web/digest.js";
import { Timeline } from "../../../demo_web/session_timeline.js";
import {
  chars,
  decodeFrame,
  decodeServer,
  encodeClient,
  offset,
  wellFormed,
  WireError,
} from "../../../demo_web/wire.js";

const read = (name) => JSON.parse(readFileSync(new URL(`../../../protocol/vectors/${name}.json`, import.meta.url)));
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const hash = (data) => createHash("sha256").update(data).digest("hex");
const refused = (code, field) => (error) => error instanceof WireError && error.code === code && error.field === field;

test("messages of the server", () => {
  const cases = read("messages").cases.filter((each) => each.direction === "server");
  assert.ok(cases.length > 20);
  for (const { name, text, encoded, fields } of cases) {
    assert.deepEqual(decodeServer(text), fields, name);
    assert.deepEqual(decodeServer(encoded), fields, name);
  }
});

test("messages of the client", () => {
  const unsaid = ({ type, lexicon, api_key: key }) => ["silence", "pause", "unpause"].includes(type) || lexicon || key;
  const all = read("messages").cases.filter((each) => each.direction === "client");
  const cases = all.filter((each) => !unsaid(each.fields)); // a page says no others
  assert.ok(cases.length > 20);
  for (const { name, encoded, fields } of cases) {
    assert.deepEqual(JSON.parse(encodeClient(fields)), JSON.parse(encoded), name);
  }
});

test("messages that a client refuses", () => {
  for (const { name, direction, text, code, field } of read("errors").cases) {
    if (direction === "server") assert.throws(() => decodeServer(text), refused(code, field), name);
  }
  const long = JSON.stringify({ type: "error", code: "internal", message: "😀".repeat(65_600) });
  assert.throws(() => decodeServer(long), refused("too_big", null));
  assert.throws(() => decodeServer("{"), refused("bad_json", null));
});

test("messages that a client does not send", () => {
  for (const [message, field] of [
    [{ type: "open", speed: 3 }, "open.speed"],
    [{ type: "start", seq: 1, utterance: 1, voice: "" }, "start.voice"],
    [{ type: "text", seq: 1, text: "a".repeat(16_385) }, "text.text"],
    [{ type: "text", text: "a" }, "text.seq"],
    [{ type: "ack", generation: 1, utterance: 1, next_sample: 0.5 }, "ack.next_sample"],
  ]) {
    assert.throws(() => encodeClient(message), refused("bad_message", field), field);
  }
  encodeClient({ type: "text", seq: 1, text: "😀".repeat(16_384) });
});

test("text is counted in code points, and lone surrogates are no text", () => {
  assert.equal(chars("a👋b"), 3);
  assert.equal(offset("a👋b", 2), 3);
  assert.equal(offset("a👋b", 9), 4);
  assert.equal(chars("\ud83d"), 1);
  assert.equal(wellFormed("a\ud83d👋\udc4b"), "a\ufffd👋\ufffd");
  const sent = encodeClient({ type: "start", seq: 1, utterance: 1, instruct: "\ud83d" });
  assert.equal(JSON.parse(sent).instruct, "\ufffd");
});

test("frames", () => {
  const vectors = read("frames");
  for (const { name, hex, header, known_flags, payload_sha256, samples, packets } of vectors.cases) {
    const padded = bytes("ffff" + hex); // a frame need not begin its buffer
    const frame = decodeFrame(padded.subarray(2));
    assert.equal(frame.codec, header.codec === 1 ? "pcm" : "opus", name);
    assert.deepEqual(
      [frame.generation, frame.utterance, frame.first, frame.count],
      [header.generation, header.utterance, header.first_sample, header.count],
      name,
    );
    const flags = { last: frame.last, decoder_reset: frame.decoderReset, silence_run: frame.silenceRun };
    for (const [flag, is] of Object.entries(flags)) assert.equal(is, known_flags.includes(flag), `${name} ${flag}`);
    assert.equal(hash(frame.payload), payload_sha256, name);
    if (packets)
      assert.deepEqual(
        frame.packets.map((each) => Buffer.from(each).toString("hex")),
        packets,
        name,
      );
    else if (!frame.silenceRun) {
      const view = new DataView(frame.payload.buffer, frame.payload.byteOffset, frame.payload.length);
      assert.deepEqual(
        samples.map((_, i) => view.getInt16(2 * i, true)),
        samples,
        name,
      );
    }
  }
  for (const { name, hex, code, field } of vectors.bad) {
    assert.throws(() => decodeFrame(bytes(hex)), refused(code, field), name);
  }
});

test("digests of utterances", () => {
  const { cases } = read("digests");
  assert.ok(cases.length > 3);
  for (const { name, segments, frames_hex, done, pre_skip = 0 } of cases) {
    const follow = (alter) => {
      const timeline = new Timeline(pre_skip || done.pre_skip || 156);
      let first = 0;
      for (const [index, { pcm_hex, digest }] of segments.entries()) {
        timeline.begin(index, first);
        timeline.end(index, pcm_hex.length / 4, digest);
        first += pcm_hex.length / 4;
      }
      for (const hex of frames_hex) timeline.audio(alter(decodeFrame(bytes(hex))));
      return timeline;
    };
    follow((frame) => frame).done({ ...done });
    for (const wrong of ["digest", "wire_digest"]) {
      assert.throws(() => follow((frame) => frame).done({ ...done, [wrong]: "0".repeat(64) }), name);
    }
    assert.throws(() => follow((frame) => frame).done({ ...done, samples: done.samples + 10_000 }), name);
  }
});

test("lengths of Opus", () => {
  for (const each of read("digests").opus_lengths) {
    const { samples, pre_skip, samples_per_packet, packets, coded_samples, drop_at_start, drop_at_end } = each;
    const timeline = new Timeline(pre_skip);
    for (let k = 0; k < packets; k++) {
      const payload = new Uint8Array(3);
      timeline.audio({
        codec: "opus",
        first: k * samples_per_packet,
        count: samples_per_packet,
        payload,
        last: k === packets - 1,
      });
    }
    assert.equal(timeline.next, coded_samples);
    assert.equal(coded_samples - drop_at_start - drop_at_end, packets ? samples : 0);
    assert.equal(timeline.lacksAudio(samples), false);
    assert.equal(timeline.lacksAudio(samples + drop_at_end + 1), true);
  }
});

test("CRC-32 and SHA-256 in any pieces", () => {
  for (let size = 0; size < 300; size += size < 130 ? 1 : 13) {
    const data = Uint8Array.from(randomBytes(size));
    const cut = Math.floor(Math.random() * (size + 1));
    const [head, tail] = [data.subarray(0, cut), data.subarray(cut)];
    assert.equal(crc32(tail, crc32(head)), zlibCrc32(data));
    const begun = new Sha256().update(head);
    assert.equal(begun.hex(), hash(head));
    assert.equal(begun.update(tail).hex(), hash(data));
  }
});
