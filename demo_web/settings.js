/** What a player is asked for, checked where it is asked, and its errors. Pure. */

/**
 * @typedef {"auto" | "opus" | "pcm" | "switch"} Format `auto`: Opus where this browser can decode it; `switch`: PCM
 *   that turns into Opus on a slow line
 * @typedef {{voice?: string | null, speed?: number | null, pitch?: number | null, volume?: number | null,
 *   format?: Format, mode?: "auto" | "stream" | "block", prerollMs?: number}} Settings
 */

export class PlayerError extends Error {
  /** @param {{code: string, message?: string, retryable?: boolean, field?: string | null}} detail */
  constructor({ code, message, retryable = false, field = null }) {
    super(message ?? code);
    this.name = "PlayerError";
    this.code = code;
    this.retryable = retryable;
    this.field = field;
  }
}

/** @typedef {[allowed: string, fits: (value: unknown) => boolean]} Rule */

/** @type {(low: number, high: number) => Rule} */
const number = (low, high) => [
  `a number from ${low} to ${high}`, (value) => typeof value === "number" && value >= low && value <= high,
];
/** @type {(...options: string[]) => Rule} */
const choice = (...options) => [`one of ${options.join(", ")}`, (value) => options.includes(String(value))];
/** @type {(rule: Rule) => Rule} */
const orNull = ([allowed, fits]) => [`${allowed}, or null`, (value) => value === null || fits(value)];
const length = (/** @type {unknown} */ value) => (typeof value === "string" ? [...value].length : 0);

/** @type {{[field: string]: Rule}} as in the protocol; left out, all may be */
const RULES = {
  voice: orNull(["a string of 1 to 128 characters", (value) => length(value) >= 1 && length(value) <= 128]),
  speed: orNull(number(0.5, 2)),
  pitch: orNull(number(0.5, 2)),
  volume: orNull(number(0, 2)),
  format: choice("auto", "opus", "pcm", "switch"),
  mode: choice("auto", "stream", "block"),
  prerollMs: number(0, 60_000),
};

/**
 * Throws PlayerError `bad_value`, whose `field` names the first one that is wrong, unknown or cannot be set.
 * @param {{[field: string]: unknown}} settings @param {string[]} [place] others that are allowed, unchecked
 */
export function check(settings, place = []) {
  const unknown = Object.keys(settings).find((field) => !Object.hasOwn(RULES, field) && !place.includes(field));
  if (unknown !== undefined) {
    const message = `${unknown} is not among ${[...Object.keys(RULES), ...place].join(", ")}`;
    throw new PlayerError({ code: "bad_value", message, field: unknown });
  }
  for (const [field, [allowed, fits]] of Object.entries(RULES)) {
    const value = settings[field];
    if (value === undefined || fits(value)) continue;
    throw new PlayerError({ code: "bad_value", message: `${field} must be ${allowed}`, field });
  }
}
