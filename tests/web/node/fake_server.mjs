// A small server of the protocol for tests: exact, strict, without time of its own. Each character of a text is spoken
// as CHAR_SAMPLES samples that tell which character it is, so that every sample of a timeline has one right value.

import { createHash } from "node:crypto";
import { crc32 } from "node:zlib";

export const CHAR_SAMPLES = 120;
export const RATE = 24_000;
export const PRE_SKIP = 156;
export const PACKET = 480;
const WARM_SAMPLES = 1_920;
const FRAME = 600;

/** The samples of a text. */
export function speech(text) {
  const samples = [];
  for (const char of text) {
    for (let i = 0; i < CHAR_SAMPLES; i++) samples.push(((char.codePointAt(0) * 331 + i * 7) % 20_000) + 1);
  }
  return samples;
}

const raw = (samples) => Buffer.from(Int16Array.from(samples).buffer);
const sha = (data) => createHash("sha256").update(data).digest();

class Utterance {
  constructor(number, format) {
    Object.assign(this, {
      number,
      format,
      pieces: [],
      ended: false,
      cancelled: false,
      done: false,
      spokenTo: 0,
      samples: [],
    });
    Object.assign(this, { segments: [], codedSent: 0, pcmEnd: null, sent: 0, acked: 0, played: 0, length: 0 });
  }
}

export class FakeSession {
  constructor(server, open) {
    Object.assign(this, {
      server,
      generation: 1,
      epoch: 0,
      seq: 0,
      spent: 0,
      events: 0,
      tokens: ["token1"],
      carrier: null,
    });
    Object.assign(this, {
      paused: false,
      wire: new Map(),
      log: [],
      cursor: 0,
      utterances: new Map(),
      writing: null,
      open,
    });
    this.id = `session${++server.sessions}`;
    this.lead = open.max_lead_ms === undefined ? 4_000 : open.max_lead_ms;
    this.switchAt = open.format === "auto" ? server.options.switchAt : 0;
  }

  get opened() {
    const { open, server } = this;
    return {
      type: "opened",
      session: this.id,
      token: this.tokens[0],
      epoch: 0,
      generation: 1,
      config: {
        voice: "tone",
        format: open.format ?? "pcm",
        sample_rate: RATE,
        max_lead_ms: this.lead,
        mode: "stream",
      },
      limits: {
        resume_ttl_ms: server.options.ttl,
        text_window_chars: server.options.window,
        queued_utterances: 4,
        text_chars: 40,
      },
      pre_skip: open.format === "pcm" || !open.format ? 0 : PRE_SKIP,
    };
  }

  // ---- the log: everything that is ever sent, in order ----

  #event(fields) {
    this.log.push({ ...fields, event: ++this.events });
  }

  /** Speaks what is certain. */
  speak(utterance, all) {
    for (;;) {
      const head = utterance.pieces[0];
      if (head === undefined) break;
      if (head.silence) {
        utterance.pieces.shift();
        this.spent++;
        this.#segment(utterance, utterance.spokenTo, "", Array(Math.round((head.silence * RATE) / 1_000)).fill(0));
        continue;
      }
      if (head.flush) {
        utterance.pieces.shift();
        continue;
      }
      let text = "";
      let index = 0;
      while (index < utterance.pieces.length && utterance.pieces[index].text !== undefined)
        text += utterance.pieces[index++].text;
      const closed = all || index < utterance.pieces.length;
      const found = text.search(/[.!?]./su);
      const chars = [...text];
      const end = found >= 0 ? [...text.slice(0, found + 1)].length : closed ? chars.length : 0;
      if (!end) break;
      utterance.pieces.splice(0, index, { text: chars.slice(end).join("") });
      if (!utterance.pieces[0].text) utterance.pieces.shift();
      const said = chars.slice(0, end).join("");
      this.spent += end;
      this.#segment(utterance, utterance.spokenTo + end, said, speech(said));
    }
    if (utterance.ended && !utterance.done && !utterance.cancelled) this.#finish(utterance);
  }

  #segment(utterance, end, text, samples) {
    const { number } = utterance;
    const segment = utterance.segments.length;
    const start = utterance.spokenTo;
    const first = utterance.samples.length;
    this.#event({
      type: "segment_begin",
      utterance: number,
      segment,
      start,
      end,
      first_sample: first,
      kind: text ? "speech" : "silence",
    });
    if (text && this.server.options.words) {
      const words = [...text.matchAll(/\S+/gu)].map((match) => {
        const at = [...text.slice(0, match.index)].length;
        const to = at + [...match[0]].length;
        const place = (chars) => first + chars * CHAR_SAMPLES;
        return { text: match[0], start: start + at, end: start + to, first_sample: place(at), end_sample: place(to) };
      });
      this.#event({ type: "timing", utterance: number, segment, words });
    }
    utterance.spokenTo = end;
    utterance.samples.push(...samples);
    const silence = !text && utterance.format === "pcm";
    this.#audio(utterance, false, silence ? first : null);
    const digest = sha(raw(samples));
    utterance.segments.push({ digest, first, samples, start, end, text });
    this.#event({
      type: "segment_end",
      utterance: number,
      segment,
      samples: samples.length,
      digest: digest.toString("hex"),
    });
  }

  /** Frames for all samples that have none. */
  #audio(utterance, last, silence) {
    if (utterance.format === "pcm") {
      for (let at = utterance.length; at < utterance.samples.length; at += FRAME) {
        if (this.switchAt && at >= this.switchAt && silence === null) {
          utterance.format = "opus";
          utterance.pcmEnd = utterance.length = at;
          utterance.codedSent = Math.max(0, Math.floor((at + PRE_SKIP - WARM_SAMPLES) / PACKET)) * PACKET;
          return this.#audio(utterance, last, null);
        }
        const count = Math.min(FRAME, utterance.samples.length - at);
        this.log.push({ audio: utterance, codec: 1, first: at, count, silence: silence !== null });
        utterance.length = at + count;
      }
      if (last && utterance.samples.length)
        this.log.push({ audio: utterance, codec: 1, first: utterance.length, count: 0, last });
      return;
    }
    const coded = utterance.samples.length + PRE_SKIP;
    const until = last ? Math.ceil(coded / PACKET) * PACKET : Math.floor(coded / PACKET) * PACKET;
    for (; utterance.codedSent < until; utterance.codedSent += PACKET) {
      const begins = utterance.codedBegan !== true;
      utterance.codedBegan = true;
      const isLast = last && utterance.codedSent + PACKET >= until;
      this.log.push({
        audio: utterance,
        codec: 2,
        first: utterance.codedSent,
        count: PACKET,
        reset: begins,
        last: isLast,
      });
    }
    utterance.length = utterance.samples.length;
  }

  #finish(utterance) {
    if (utterance.samples.length) this.#audio(utterance, true, null);
    utterance.done = true;
    const digest = sha(Buffer.concat(utterance.segments.map((each) => each.digest))).toString("hex");
    this.#event({
      type: "done",
      utterance: utterance.number,
      samples: utterance.samples.length,
      digest,
      statistics: {},
    });
  }

  // ---- what the client says ----

  take(message) {
    const fail = (code, text) => this.server.fail(this.carrier, code, text);
    if (message.type === "ping") return this.send({ type: "pong", id: message.id });
    if (message.type === "ack") return this.#ack(message, fail);
    if (message.seq === undefined) return fail("unexpected", message.type);
    if (message.seq <= this.seq) return this.sendSeq();
    if (message.seq !== this.seq + 1) return fail("sequence", `${message.seq} after ${this.seq}`);
    this.seq++;
    const utterance = this.writing;
    if (["text", "silence", "flush", "end"].includes(message.type) && !utterance)
      return fail("unexpected", message.type);
    if (message.type === "start") {
      if (utterance) return fail("unexpected", "start");
      if (message.utterance <= Math.max(0, ...this.utterances.keys())) return fail("bad_message", "utterance");
      this.writing = new Utterance(message.utterance, this.open.format === "opus" ? "opus" : "pcm");
      this.utterances.set(message.utterance, this.writing);
      if ([...this.utterances.values()].filter((each) => this.isUnfinished(each)).length > 4)
        return fail("queue_full", "");
    } else if (message.type === "text") {
      this.received = (this.received ?? 0) + [...message.text].length;
      if (this.received - this.spent > this.server.options.window) return fail("text_window", "");
      if (message.text !== message.text.toWellFormed()) return fail("bad_json", "surrogate");
      utterance.pieces.push({ text: message.text });
    } else if (message.type === "silence") {
      this.received = (this.received ?? 0) + 1;
      utterance.pieces.push({ silence: message.ms });
    } else if (message.type === "flush" && !message.soft) {
      utterance.pieces.push({ flush: true });
    } else if (message.type === "end") {
      utterance.ended = true;
      this.writing = null;
    } else if (message.type === "cancel") {
      const all = [...this.utterances.values()].filter((each) => this.isUnfinished(each));
      for (const each of all)
        if (message.utterance === null || message.utterance === undefined || each.number === message.utterance)
          this.#cancel(each, message);
    }
    if (message.type === "pause") this.paused = true;
    if (message.type === "unpause") this.paused = false;
    if (utterance && !utterance.cancelled) this.speak(utterance, utterance.ended);
    this.sendSeq();
  }

  isUnfinished(utterance) {
    if (utterance.cancelled) return false;
    if (!utterance.doneSent) return true;
    return this.lead === null ? !utterance.ackedAll : utterance.played < utterance.samples.length;
  }

  #cancel(utterance, { played_sample: played = utterance.played }) {
    utterance.cancelled = true;
    if (this.writing === utterance) this.writing = null;
    for (const piece of utterance.pieces) this.spent += piece.silence ? 1 : [...(piece.text ?? "")].length;
    utterance.pieces = [];
    const rest = this.log
      .slice(this.cursor)
      .filter((each) => each.audio !== utterance && each.utterance !== utterance.number);
    this.log.length = this.cursor;
    const sample = Math.min(
      utterance.samples.length,
      utterance.format === "opus" ? Math.max(0, utterance.sent - PRE_SKIP) : utterance.sent,
    );
    const events = this.log.findLast((each) => each.event)?.event ?? this.lowest ?? 0;
    this.events = events;
    for (const each of [
      { type: "cancelled", utterance: utterance.number, sample, heard_text_end: Math.floor(played / CHAR_SAMPLES) },
      ...rest,
    ]) {
      if (each.type) this.#event(each);
      else this.log.push(each);
    }
  }

  #ack({ generation, utterance, next_sample: next, played_sample: played = 0, event = 0, buffered_ms = 0 }, fail) {
    if (generation !== this.generation) return;
    this.tokens.splice(1);
    const sentEvents = Math.max(0, ...this.log.slice(0, this.cursor).map((each) => each.event ?? 0), this.lowest ?? 0);
    if (event > sentEvents) return fail("bad_ack", `event ${event} of ${sentEvents}`);
    if (!Number.isSafeInteger(buffered_ms)) return fail("bad_message", "buffered_ms");
    const entry = this.utterances.get(utterance);
    if (utterance === 0) return;
    if (!entry) return fail("bad_ack", `utterance ${utterance}`);
    if (entry.cancelled) return;
    if (next > entry.sent || played > next) return fail("bad_ack", `${next} of ${entry.sent}, ${played}`);
    entry.acked = Math.max(entry.acked, next);
    entry.played = Math.max(entry.played, played);
    entry.ackedAll ||= entry.doneSent && next >= entry.sent;
    for (const each of this.utterances.values()) {
      if (each.number < utterance && each.doneSent)
        Object.assign(each, { ackedAll: true, played: each.samples.length });
    }
    this.pump();
  }

  // ---- what the server says ----

  send(message) {
    if (this.carrier !== null) this.server.send(this.carrier, JSON.stringify(message));
  }

  sendSeq() {
    this.send({ type: "seq_ack", seq: this.seq, room: this.server.options.window - (this.received ?? 0) + this.spent });
  }

  /** One item of the log. Whether there was one that may be sent. */
  step() {
    const item = this.log[this.cursor];
    if (this.carrier === null || item === undefined) return false;
    if (!item.audio) {
      this.cursor++;
      if (item.type === "done") {
        const utterance = this.utterances.get(item.utterance);
        utterance.doneSent = true;
        item.wire_digest = sha(Buffer.concat(this.wire.get(item.utterance) ?? [])).toString("hex");
      }
      this.send(item);
      return true;
    }
    const { audio: utterance, codec, first, count, last = false } = item;
    const place = codec === 2 ? first - PRE_SKIP : first;
    if (this.paused || (this.lead !== null && !last && place - utterance.played > (this.lead * RATE) / 1_000))
      return false;
    if (
      this.lead !== null &&
      [...this.utterances.values()].some((each) => each.number < utterance.number && this.isUnfinished(each))
    )
      return false;
    this.cursor++;
    this.frame(item);
    return true;
  }

  frame({ audio: utterance, codec, first, count, silence = false, reset = false, last = false }) {
    let payload = Buffer.alloc(0);
    if (codec === 2) {
      const coded = Array.from({ length: count }, (_, i) => utterance.samples[first + i - PRE_SKIP] ?? 0);
      payload = Buffer.concat([Buffer.from([(2 * count) >> 8, (2 * count) & 255]), raw(coded)]);
    } else if (!silence) {
      payload = raw(utterance.samples.slice(first, first + count));
    }
    const header = Buffer.alloc(28);
    header.writeUInt8(1, 0);
    header.writeUInt8(codec, 1);
    header.writeUInt16BE((last ? 1 : 0) | (reset ? 2 : 0) | (silence ? 4 : 0), 2);
    header.writeUInt32BE(this.generation, 4);
    header.writeUInt32BE(utterance.number, 8);
    header.writeBigUInt64BE(BigInt(first), 12);
    header.writeUInt32BE(count, 20);
    header.writeUInt32BE(crc32(payload), 24);
    utterance.sent = Math.max(utterance.sent, first + count);
    const wire = this.wire.get(utterance.number) ?? [];
    this.wire.set(utterance.number, [...wire, payload]);
    this.server.send(this.carrier, new Uint8Array(Buffer.concat([header, payload])));
  }

  /** Everything that may go now, an item at a time. */
  pump() {
    this.server.wake(this);
  }

  // ---- another connection ----

  resume(message, connection) {
    const { options } = this.server;
    const entry = this.utterances.get(message.utterance);
    if (!this.tokens.includes(message.token)) return "auth";
    if (entry && message.next_sample > entry.sent && !options.epochs) return "range";
    if (this.carrier !== null) this.server.cut(this.carrier);
    this.carrier = connection;
    this.generation = Math.max(this.generation, message.generation_seen) + 1;
    this.wire.clear();
    if (options.epochs) this.#anotherProcess(message);
    else {
      // the log from the first thing that the client lacks
      const lacks = (each) => (each.audio ? this.#lacksAudio(each, message) : each.event > message.events_seen);
      const items = this.log.filter((each, index) => lacks(each) || index >= this.cursor);
      this.lowest = message.events_seen;
      this.log = items.filter((each) => !each.audio?.cancelled);
      this.cursor = 0;
      this.#trim(message);
    }
    const token = `token${Math.random()}`;
    this.tokens = [token, ...this.tokens].slice(0, 9);
    const room = options.window - (this.received ?? 0) + this.spent;
    const next = this.log.find((each) => each.audio);
    this.send({
      type: "resumed",
      generation: this.generation,
      epoch: this.epoch,
      utterance: next?.audio.number ?? message.utterance,
      from_sample: next?.first ?? message.next_sample,
      synthesised_end: next?.audio.samples.length ?? message.next_sample,
      new_token: token,
      mode: "block",
      seq: this.seq,
      room,
    });
    this.pump();
    return null;
  }

  #lacksAudio({ audio, codec, first, count, last }, message) {
    if (audio.number !== message.utterance) return audio.number > message.utterance;
    if (codec === 2 && audio.pcmEnd !== null && message.next_sample <= audio.pcmEnd) return true; // it counts PCM
    return first + count > message.next_sample || (last && count === 0 && first >= message.next_sample);
  }

  /** PCM begins exactly at the sample that is asked for. */
  #trim(message) {
    const index = this.log.findIndex((each) => each.audio);
    const item = this.log[index];
    if (!item || item.audio.number !== message.utterance || item.codec !== 1) return;
    const known = message.next_sample - item.first;
    if (known > 0) this.log[index] = { ...item, first: item.first + known, count: item.count - known };
  }

  /** As if another process had made the session again: events of the segment in question come under new numbers. */
  #anotherProcess(message) {
    this.epoch++;
    const old = this.log;
    const cursor = this.cursor;
    this.log = [];
    this.cursor = 0;
    this.events = this.lowest = message.events_seen;
    const lacks = (each) => this.#lacksAudio(each, message);
    const told = old.slice(0, cursor).filter((each) => each.event && each.event <= message.events_seen);
    const segmentAt = (each) =>
      told.some(
        (other) => other.type === "segment_end" && other.utterance === each.utterance && other.segment === each.segment,
      );
    for (const each of old) {
      if (each.audio ? each.audio.cancelled || !lacks(each) : each.segment !== undefined && segmentAt(each)) continue;
      if (each.audio) this.log.push(each);
      else if (each.type !== "done" || !told.includes(each) || each.utterance >= message.utterance)
        this.#event({ ...each });
    }
    this.#trim(message);
    const first = this.log.findIndex((each) => each.audio);
    const item = this.log[first];
    if (item?.codec === 2 && item.audio.number === message.utterance) {
      const from = Math.max(0, Math.floor((item.first - WARM_SAMPLES) / PACKET)) * PACKET; // a new encoder
      const warm = [];
      for (let at = from; at < item.first; at += PACKET)
        warm.push({ ...item, first: at, reset: at === from, last: false });
      this.log.splice(first, 1, ...warm, { ...item, reset: from === item.first });
    }
  }
}

/** `wire`: {send(connection, data), cut(connection), close(connection, code)}; `wake(session)` when there is more. */
export class FakeServer {
  constructor(wire, options = {}) {
    this.options = { ttl: 60_000, window: 60, words: true, epochs: false, switchAt: 2_500, ...options };
    Object.assign(this, {
      ...wire,
      sessions: 0,
      sessionsById: new Map(),
      byConnection: new Map(),
      errors: [],
      opens: [],
    });
  }

  receive(connection, text) {
    const message = JSON.parse(text);
    if (message.type === "open") {
      if (this.busyUntil > this.now()) {
        this.send(connection, JSON.stringify({ type: "busy", retry_after_ms: 700, reason: "loading" }));
        return;
      }
      this.opens.push(message);
      const session = new FakeSession(this, message);
      session.carrier = connection;
      this.sessionsById.set(session.id, session);
      this.byConnection.set(connection, session);
      session.send(session.opened);
    } else if (message.type === "resume") {
      const session = this.sessionsById.get(message.session);
      const reason = session && this.options.ttl ? session.resume(message, connection) : "unknown";
      if (reason === null) this.byConnection.set(connection, session);
      else this.send(connection, JSON.stringify({ type: "resume_failed", reason }));
    } else {
      const session = this.byConnection.get(connection);
      if (session?.carrier === connection) session.take(message);
    }
  }

  closed(connection, code) {
    const session = this.byConnection.get(connection);
    this.byConnection.delete(connection);
    if (session?.carrier !== connection) return;
    session.carrier = null;
    if (code === 1000) this.sessionsById.delete(session.id);
  }

  /** The client did what it must not. */
  fail(connection, code, text) {
    this.errors.push(`${code}: ${text}`);
    this.send(connection, JSON.stringify({ type: "error", code, message: text }));
  }
}
