/** Who may: the voices that the server offers, and where it asks for a key, a token in its place. Key and token are only kept in memory. */

const TTL_S = 600, RENEW_MS = 60_000;

/** @typedef {{id: string, name: string, languages: string[], description: string, license: string, notice: string, parameters: string[], default: boolean}} Voice */

/** `code`: unauthorized, unreachable, busy's reasons, another of the server's, or of a download `download`; `retryAfterMs` where it says when to come again */
export class AccessError extends Error {
  /** @param {string} code @param {number | null} retryAfterMs @param {boolean} passing  another time it may be given */
  constructor(code, retryAfterMs = null, passing = false) {
    super(code);
    this.code = code;
    this.retryable = code === "unreachable" || passing;
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
  async voices() { return this.withToken(token => this.#ask("v1/voices", { headers: bearer(token) })); }

  /**
   * @template T @param {(token: string | null) => Promise<T>} act  done once more, with a token made just then, where the server does not know
   *   the one at hand @returns {Promise<T>}  Throws AccessError `unauthorized` where it does not know the key, and what `act` throws.
   */
  async withToken(act) {
    const token = await this.token();
    return act(token).catch(async problem => {
      if (!this.#key || problem.code !== "unauthorized") throw problem;
      return act(await this.fresh());
    });
  }

  /** @param {string} key  takes its place; throws AccessError `unauthorized` where the server does not know it */
  async use(key) {
    if (!/^[\x21-\x7e]+$/.test(key)) throw new AccessError("unauthorized");  // `fetch` takes no others in a header
    this.#key = key;
    this.#token = this.#asking = null;
    try {
      await this.token();
    } catch (problem) {
      if (this.#key === key) this.#key = null;
      throw problem;
    }
  }

  /** @returns {Promise<string | null>}  one that is good for a minute at least; null where no key was given. Throws AccessError. */
  async token() {
    if (!this.#key || (this.#token && performance.now() < this.#until - RENEW_MS)) return this.#token;
    if (this.#asking) return this.#asking;
    /** @type {Promise<string | null>} */
    const asking = this.#renew(this.#key).finally(() => { if (this.#asking === asking) this.#asking = null; });
    return this.#asking = asking;
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
    if (key !== this.#key) return answer.token;  // there is another one by now
    this.#until = asked + 1000 * (answer.ttl_s ?? TTL_S);
    return this.#token = answer.token;
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
    throw refusal(answer, told);
  }
}

/** @param {Response} answer  that is not what was asked for @param {any} told  its JSON, null where it is none @returns {AccessError} */
export function refusal({ status, headers }, told) {
  const after = Number(headers.get("Retry-After"));
  const unknown = status === 401 || status === 431;  // no key or token is so long that it fills a request's head
  return new AccessError(unknown ? "unauthorized" : told?.error?.code ?? "internal", after ? after * 1000 : null,
    status === 429 || status >= 500);
}

/** @param {string | null} secret @returns {Record<string, string>} */
const bearer = secret => secret ? { Authorization: `Bearer ${secret}` } : {};
