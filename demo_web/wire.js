/** Messages and audio frames of the protocol (docs/protocol.md) to objects and back. Nothing is believed unchecked. */

import { crc32 } from "./digest.js";

const U32 = 0xffff_ffff;
const U53 = Number.MAX_SAFE_INTEGER;
const MAX_MESSAGE_BYTES = 262_144;
const HEADER_BYTES = 28;

/**
 * @typedef {{text: string, start: number, end: number, first_sample: number, end_sample: number}} Word
 * @typedef {{[name: string]: unknown}} Fields
 * @typedef {{type: "opened", session: string, token: string, epoch: number, generation: number, config: Fields,
 *   limits: Fields, pre_skip: number}} Opened
 * @typedef {{type: "seq_ack", seq: number, room: number}} SeqAck
 * @typedef {{type: "segment_begin", event: number, utterance: number, segment: number, start: number, end: number,
 *   first_sample: number, cause: string, kind: "speech" | "silence", cue: string | null}} SegmentBegin
 * @typedef {{type: "timing", event: number, utterance: number, segment: number, words: Word[]}} Timing
 * @typedef {{type: "segment_end", event: number, utterance: number, segment: number, samples: number, digest: string,
 *   degraded: boolean, reason: string}} SegmentEnd
 * @typedef {{type: "mode", event: number, utterance: number, mode: "stream" | "block", reason: string,
 *   at_sample: number}} ModeChange
 * @typedef {{type: "cancelled", event: number, utterance: number, sample: number, heard_text_end: number}} Cancelled
 * @typedef {{type: "done", event: number, utterance: number, samples: number, digest: string, wire_digest: string,
 *   statistics: Fields}} Done
 * @typedef {{type: "resumed", generation: number, epoch: number, utterance: number, from_sample: number,
 *   synthesised_end: number, new_token: string, mode: "stream" | "block", seq: number, room: number}} Resumed
 * @typedef {{type: "resume_failed", reason: string, utterance: number | null,
 *   restart_text_position: number | null}} ResumeFailed
 * @typedef {{type: "busy", retry_after_ms: number, reason: string, message: string}} Busy
 * @typedef {{type: "error", code: string, message: string, field: string | null, retryable: boolean}} ServerError
 * @typedef {SegmentBegin | Timing | SegmentEnd | ModeChange | Cancelled | Done} Event
 * @typedef {Opened | SeqAck | {type: "pong", id: number} | {type: "heartbeat", event: number} | Event | Resumed
 *   | ResumeFailed | Busy | {type: "goaway", deadline_ms: number, reason: string} | ServerError} ServerMessage
 * @typedef {{type: string, [field: string]: unknown}} ClientMessage
 * @typedef {{codec: "pcm" | "opus", generation: number, utterance: number, first: number, count: number,
 *   payload: Uint8Array, packets: Uint8Array[], last: boolean, decoderReset: boolean, silenceRun: boolean}} Frame
 */

/** What does not follow the protocol. `code` as in the protocol's errors; `field` names what, as `type.field`. */
export class WireError extends Error {
  isOurs = false; // a message of the client

  /** @param {string} code @param {string} message @param {string | null} [field] */
  constructor(code, message, field = null) {
    super(message);
    this.code = code;
    this.field = field;
  }
}

/** The length of a text in code points: what the protocol counts. @param {string} text */
export function chars(text) {
  return text.length - (text.match(/[\ud800-\udbff][\udc00-\udfff]/g)?.length ?? 0);
}

/** Where in the string so many code points end. @param {string} text @param {number} count */
export function offset(text, count) {
  if (!/[\ud800-\udbff]/.test(text)) return Math.min(count, text.length);
  let at = 0;
  for (let left = count; at < text.length && left > 0; left--) {
    at += /** @type {number} */ (text.codePointAt(at)) > 0xffff ? 2 : 1;
  }
  return at;
}

/** The text with U+FFFD for every lone surrogate, which is no character. @param {string} text */
export function wellFormed(text) {
  return text.replace(/[\ud800-\udfff]/gu, "\ufffd");
}

// ---- what fields may hold: each check gives true, or what is allowed ----

/** @typedef {(value: unknown) => true | string} Check */

/** @type {(low: number, high: number) => Check} */
const integer = (low, high) => (value) =>
  (Number.isSafeInteger(value) && Number(value) >= low && Number(value) <= high) ||
  `an integer from ${low} to ${high}`;
/** @type {(low: number, high: number) => Check} */
const number = (low, high) => (value) =>
  (typeof value === "number" && value >= low && value <= high) || `a number from ${low} to ${high}`;
/** @type {(most: number, least?: number) => Check} */
const string = (most, least = 0) => (value) => {
  const length = typeof value === "string" ? chars(value) : -1;
  return (length >= least && length <= most) || `a string of ${least} to ${most} characters`;
};
/** @type {(...options: string[]) => Check} */
const choice = (...options) => (value) =>
  options.includes(/** @type {string} */ (value)) || `one of ${options.join(", ")}`;
/** @type {Check} */
const boolean = (value) => typeof value === "boolean" || "true or false";
/** @param {unknown} value @returns {value is Fields} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
/** @type {Check} */
const object = (value) => isObject(value) || "an object";
/** @type {(check: Check) => Check} */
const orNull = (check) => (value) => {
  const allowed = value === null || check(value);
  return allowed === true || `${allowed}, or null`;
};

const u32 = integer(0, U32);
const u53 = integer(0, U53);
const text4000 = string(4_000);
const name = string(128);
const voice = orNull(string(128, 1));
const factor = number(0.5, 2);
const volume = number(0, 2);
const digest = string(64, 64);
const mode = choice("stream", "block");

/** @type {{[field: string]: Check}} */
const WORD = { text: text4000, start: u53, end: u53, first_sample: u53, end_sample: u53 };
/** @type {Check} */
const words = (value) => {
  if (!Array.isArray(value)) return "an array";
  for (const word of value) {
    if (!isObject(word)) return "an array of objects";
    for (const [field, check] of Object.entries(WORD)) {
      const allowed = Object.hasOwn(word, field) ? check(word[field]) : "there";
      if (allowed !== true) return `an array of words whose \`${field}\` is ${allowed}`;
    }
  }
  return true;
};

/** Field: [check] where it is required, [check, default] elsewhere. */
/** @typedef {{[field: string]: [Check, unknown?]}} Shape */

/** @type {Shape} */
const NUMBERED = { seq: [integer(1, U53)] };
/** @type {Shape} */
const EVENT = { event: [integer(1, U53)], utterance: [u32] };

/** What a page says; the protocol knows more. @type {{[type: string]: Shape}} */
const CLIENT = {
  open: {
    voice: [voice, null], language: [choice("auto", "zh", "en"), "auto"], speed: [factor, 1], pitch: [factor, 1],
    volume: [volume, 1], format: [choice("pcm", "opus", "auto"), "pcm"], sample_rate: [integer(8_000, 48_000), 24_000],
    frame_ms: [orNull(number(2.5, 1_000)), null], bitrate: [orNull(integer(16_000, 128_000)), null],
    mode: [choice("auto", "stream", "block"), "auto"], max_lead_ms: [orNull(integer(100, 600_000)), 4_000],
    max_buffer_delay_ms: [orNull(integer(50, 60_000)), 800], timings: [boolean, true],
  },
  start: {
    ...NUMBERED, utterance: [integer(1, U32)], voice: [voice, null], speed: [orNull(factor), null],
    pitch: [orNull(factor), null], volume: [orNull(volume), null], seed: [u32, 0], instruct: [string(2_000), ""],
  },
  text: { ...NUMBERED, text: [string(16_384)] },
  flush: { ...NUMBERED, soft: [boolean, false] },
  end: NUMBERED,
  cancel: { ...NUMBERED, utterance: [orNull(integer(1, U32)), null], played_sample: [orNull(u53), null] },
  ack: {
    generation: [integer(1, U32)], utterance: [u32], next_sample: [u53], played_sample: [u53, 0], buffered_ms: [u32, 0],
    stalls: [u32, 0], event: [u53, 0], visible: [boolean, true],
  },
  ping: { id: [u53, 0] },
  resume: {
    session: [string(128, 1)], token: [string(256, 1)], epoch: [u53], generation_seen: [u32], utterance: [u32],
    next_sample: [u53], events_seen: [u53], played_sample: [u53, 0], have_decoder: [boolean, false],
  },
};

/** @type {{[type: string]: Shape}} */
const SERVER = {
  opened: {
    session: [name], token: [string(256)], epoch: [u53], generation: [integer(1, U32)], config: [object],
    limits: [object], pre_skip: [u53, 0],
  },
  seq_ack: { seq: [u53], room: [u53] },
  pong: { id: [u53, 0] },
  heartbeat: { event: [u53, 0] },
  segment_begin: {
    ...EVENT, segment: [u53], start: [u53], end: [u53], first_sample: [u53], cause: [name, ""],
    kind: [choice("speech", "silence"), "speech"], cue: [orNull(name), null],
  },
  timing: { ...EVENT, segment: [u53], words: [words] },
  segment_end: {
    ...EVENT, segment: [u53], samples: [u53], digest: [digest], degraded: [boolean, false], reason: [text4000, ""],
  },
  mode: { ...EVENT, mode: [mode], reason: [text4000], at_sample: [u53] },
  cancelled: { ...EVENT, sample: [u53], heard_text_end: [u53] },
  done: { ...EVENT, samples: [u53], digest: [digest], wire_digest: [digest], statistics: [object] },
  resumed: {
    generation: [integer(1, U32)], epoch: [u53], utterance: [u32], from_sample: [u53], synthesised_end: [u53],
    new_token: [string(256)], mode: [mode], seq: [u53, 0], room: [u53, 0],
  },
  resume_failed: {
    reason: [choice("unknown", "expired", "epoch", "evicted", "auth", "range")], utterance: [orNull(u32), null],
    restart_text_position: [orNull(u53), null],
  },
  busy: { retry_after_ms: [u53], reason: [name, "capacity"], message: [text4000, ""] },
  goaway: { deadline_ms: [u53], reason: [text4000, ""] },
  error: { code: [name], message: [text4000], field: [orNull(name), null], retryable: [boolean, false] },
};

/**
 * The known fields of a message, with what was left out. Throws WireError.
 * @param {Fields} body
 * @param {{[type: string]: Shape}} table
 */
function checked(body, table) {
  const type = body.type;
  if (typeof type !== "string" || !Object.hasOwn(table, type)) {
    throw new WireError("unknown_type", `the type is not one of ${Object.keys(table).join(", ")}`, "type");
  }
  /** @type {ClientMessage} */
  const message = { type };
  for (const [field, shape] of Object.entries(table[type])) {
    const where = `${type}.${field}`;
    const value = Object.hasOwn(body, field) ? body[field] : undefined;
    if (value === undefined) {
      if (shape.length === 1) throw new WireError("bad_message", `${where} is missing`, where);
      message[field] = shape[1];
      continue;
    }
    const allowed = shape[0](value);
    if (allowed !== true) throw new WireError("bad_message", `${where} must be ${allowed}`, where);
    message[field] = value;
  }
  return message;
}

/** A message of the server, defaults filled in. Throws WireError. @param {string} text @returns {ServerMessage} */
export function decodeServer(text) {
  const bytes = 3 * text.length > MAX_MESSAGE_BYTES ? new TextEncoder().encode(text).length : text.length;
  if (bytes > MAX_MESSAGE_BYTES) {
    throw new WireError("too_big", `a message has at most ${MAX_MESSAGE_BYTES} bytes, this one ${bytes}`);
  }
  let body;
  try {
    body = JSON.parse(text);
  } catch (error) {
    throw new WireError("bad_json", `not JSON: ${error}`);
  }
  if (!isObject(body)) throw new WireError("bad_json", "a message is a JSON object with a `type`");
  const message = /** @type {ServerMessage} */ (/** @type {unknown} */ (checked(body, SERVER)));
  if (message.type === "timing") {
    message.words = message.words.map(({ text, start, end, first_sample, end_sample }) => ({
      text, start, end, first_sample, end_sample,
    }));
  }
  return message;
}

/**
 * The JSON text of a client's message, without what has its default. Throws WireError where a field is wrong.
 * @param {ClientMessage} message
 * @returns {string}
 */
export function encodeClient(message) {
  let body;
  try {
    body = checked(message, CLIENT);
  } catch (error) {
    throw Object.assign(/** @type {WireError} */ (error), { isOurs: true });
  }
  for (const [field, shape] of Object.entries(CLIENT[body.type])) {
    if (shape.length > 1 && body[field] === shape[1]) delete body[field];
  }
  return JSON.stringify(body, (_, value) => (typeof value === "string" ? wellFormed(value) : value));
}

/**
 * An audio frame. Every length and the CRC are checked; `payload` and `packets` are views of `data`. Throws WireError.
 * @param {Uint8Array} data
 * @returns {Frame}
 */
export function decodeFrame(data) {
  /** @type {(field: string, text: string) => WireError} */
  const bad = (field, text) => new WireError("bad_message", `audio frame: ${text}`, `frame.${field}`);
  if (data.length < HEADER_BYTES) throw bad("header", `${data.length} bytes are shorter than the header`);
  const view = new DataView(data.buffer, data.byteOffset, HEADER_BYTES);
  const codec = view.getUint8(1);
  const flags = view.getUint16(2);
  const first = view.getUint32(12) * 2 ** 32 + view.getUint32(16);
  const count = view.getUint32(20);
  const payload = data.subarray(HEADER_BYTES);
  if (view.getUint8(0) !== 1) throw bad("version", `version ${view.getUint8(0)} is not 1`);
  if (codec !== 1 && codec !== 2) throw bad("codec", `codec ${codec} is not 1 (PCM) or 2 (Opus)`);
  if (crc32(payload) !== view.getUint32(24)) throw bad("crc", "the payload does not match its CRC-32");
  if (first + count > U53) throw bad("first_sample", `${first} is too large`);
  const silenceRun = (flags & 4) !== 0;
  /** @type {Uint8Array[]} */
  let packets = [];
  if (silenceRun) {
    if (codec !== 1 || payload.length) throw bad("payload", "a silence run is PCM without payload");
  } else if (codec === 1) {
    if (payload.length !== 2 * count) throw bad("count", `${count} samples have not ${payload.length} payload bytes`);
  } else {
    for (let at = 0; at < payload.length; ) {
      const end = at + 2 + payload[at] * 256 + payload[at + 1]; // NaN where half a length is left
      if (!(end > at + 2 && end <= payload.length)) throw bad("payload", `packet at byte ${at} is cut short`);
      packets.push(payload.subarray(at + 2, end));
      at = end;
    }
  }
  return {
    codec: codec === 1 ? "pcm" : "opus",
    generation: view.getUint32(4),
    utterance: view.getUint32(8),
    first,
    count,
    payload,
    packets,
    last: (flags & 1) !== 0,
    decoderReset: (flags & 2) !== 0,
    silenceRun,
  };
}
