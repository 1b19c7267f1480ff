/** Who may: the voices that the server offers, and where it asks for a key, a token in its place. Key and token are only kept in memory. */

const TTL_S = 600, RENEW_MS = 60_000;

/** @typedef {{id: string, name: string, languages: string[], description: string, license: string, notice: string, parameters: string[], default: boolean}} Voice */

/** `code`: unauthorized, unreachable, busy's reasons, or another of the server's */
export class AccessError extends Error {
  /** @param {string} code @param {number | null} retryAfterMs */
  constructor(code, retryAfterMs = null) {
    super(code);
    this.code = code;
    this.retryAfterMs = retryAfterMs;
  }
}

export class Access {
  /** @type {string | null} */
  #key = null;
  /** @type {string | null} */
  #token = null;
  #until = 0;
  /** @type {Promise<string | null> | null} */
  #asking = null;

  /** @param {string | URL} base  the server's address */
  constructor(base) { this.base = base; }

  /** @returns {Promise<{engine: string, voices: Voice[]}>} Throws AccessError. */
  async voices() { return this.#ask("v1/voices", { headers: bearer(await this.token()) }); }

  /** @param {string} key  takes its place; throws AccessError `unauthorized` where the server does not know it */
  async use(key) {
    this.#key = key;
    this.#token = null;
    try {
      await this.token();
    } catch (problem) {
      this.#key = null;
      throw problem;
    }
  }

  /** @returns {Promise<string | null>}  one that is good for a minute at least; null where no key was given. Throws AccessError. */
  async token() {
    if (!this.#key || (this.#token && performance.now() < this.#until - RENEW_MS)) return this.#token;
    this.#asking ??= this.#renew(this.#key).finally(() => { this.#asking = null; });
    return this.#asking;
  }

  /** As `token`, made just now: a server that was started again may not know those before. */
  async fresh() {
    this.#until = 0;
    return this.token();
  }

  /** @param {string} key */
  async #renew(key) {
    const asked = performance.now();
    const answer = await this.#ask("v1/tokens", {
      method: "POST", headers: { ...bearer(key), "Content-Type": "application/json" },
      body: JSON.stringify({ ttl_s: TTL_S, scope: ["speak", "voices"] }),
    });
    this.#token = answer.token;
    this.#until = asked + 1000 * (answer.ttl_s ?? TTL_S);
    return this.#token;
  }

  /** @param {string} path @param {RequestInit} request */
  async #ask(path, request) {
    let answer;
    try {
      answer = await fetch(new URL(path, this.base), { cache: "no-store", signal: AbortSignal.timeout(10_000), ...request });
    } catch {
      throw new AccessError("unreachable");
    }
    const told = await answer.json().catch(() => null);
    if (answer.ok && told) return told;
    const after = Number(answer.headers.get("Retry-After"));
    throw new AccessError(answer.status === 401 ? "unauthorized" : told?.error?.code ?? "internal", after ? after * 1000 : null);
  }
}

/** @param {string | null} secret @returns {Record<string, string>} */
const bearer = secret => secret ? { Authorization: `Bearer ${secret}` } : {};
