/** CRC-32 and SHA-256 as they are needed here: piece by piece, and without a secure context. */

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, index) => {
  let crc = index;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xedb88320 ^ (crc >>> 1) : crc >>> 1;
  return crc;
});

/**
 * CRC-32 (that of zlib) of bytes that follow those that gave `crc`.
 * @param {Uint8Array} bytes
 * @param {number} [crc]
 * @returns {number}
 */
export function crc32(bytes, crc = 0) {
  crc = ~crc;
  for (let i = 0; i < bytes.length; i++) crc = CRC_TABLE[(crc ^ bytes[i]) & 0xff] ^ (crc >>> 8);
  return ~crc >>> 0;
}

/** The first 32 bits of the fractional parts of roots of the first primes. */
const [START, ROUNDS] = (() => {
  /** @type {number[]} */
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  /** @param {number} root */
  const bits = (root) => Math.floor((root - Math.floor(root)) * 2 ** 32) | 0;
  return [primes.slice(0, 8).map((p) => bits(Math.sqrt(p))), Int32Array.from(primes, (p) => bits(Math.cbrt(p)))];
})();
const WORDS = new Int32Array(64);

/** SHA-256 of bytes that come piece by piece. */
export class Sha256 {
  #state = Int32Array.from(START);
  #block = new Uint8Array(64);
  #length = 0;

  /** @param {Uint8Array} bytes @returns {this} */
  update(bytes) {
    let at = 0;
    const filled = this.#length % 64;
    this.#length += bytes.length;
    if (filled) {
      at = Math.min(64 - filled, bytes.length);
      this.#block.set(bytes.subarray(0, at), filled);
      if (filled + at < 64) return this;
      this.#compress(this.#block, 0);
    }
    for (; at + 64 <= bytes.length; at += 64) this.#compress(bytes, at);
    this.#block.set(bytes.subarray(at));
    return this;
  }

  /** The digest of all bytes so far, as 64 lower-case hex digits; more may follow. */
  hex() {
    const last = new Sha256();
    last.#state.set(this.#state);
    last.#block.set(this.#block);
    last.#length = this.#length;
    const filled = this.#length % 64;
    const padding = new Uint8Array(filled < 56 ? 64 - filled : 128 - filled);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer, padding.length - 8);
    view.setUint32(0, Math.floor(this.#length / 0x2000_0000));
    view.setUint32(4, (this.#length << 3) >>> 0);
    last.update(padding);
    return Array.from(last.#state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }

  /** @param {Uint8Array} bytes @param {number} at */
  #compress(bytes, at) {
    const w = WORDS;
    for (let i = 0; i < 16; i++, at += 4) {
      w[i] = (bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3];
    }
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15];
      const y = w[i - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
    }
    let [a, b, c, d, e, f, g, h] = this.#state;
    for (let i = 0; i < 64; i++) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + ROUNDS[i] + w[i]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & (b ^ c)) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((value, i) => (this.#state[i] += value));
  }
}
