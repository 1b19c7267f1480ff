// Whatever a line does, and wherever it does it: each sample comes once, and in order.

import assert from "node:assert/strict";
import { test } from "node:test";
import { seeded, Simulation } from "./simulation.mjs";

const TEXTS = ["Hello there, 👋 world. It is a fine day today, is it not? Yes.", "The second one follows. Short."];

/** Two utterances, written in pieces. */
function talk(options) {
  const simulation = new Simulation(options).start();
  const { session } = simulation;
  if (options.open?.max_lead_ms !== null) simulation.play();
  let at = 10;
  for (const [index, text] of TEXTS.entries()) {
    simulation.at(at, () => simulation.do(session.begin({}, simulation.now)));
    for (const piece of text.match(/.{1,9}/gsu)) simulation.at((at += 15), () => simulation.say(index + 1, piece));
    simulation.at((at += 15), () => simulation.do(session.end(simulation.now)));
  }
  for (let until = 1_500; until <= 60_000; until += 500) {
    simulation.run(until);
    if (session.newest === TEXTS.length && !session.unfinished && session.state === "ready") break;
  }
  return simulation;
}

function verify(simulation, what) {
  try {
    assert.deepEqual(simulation.server.errors, []);
    assert.deepEqual(
      simulation.states.filter((each) => each.startsWith("failed")),
      [],
    );
    for (const index of TEXTS.keys()) simulation.check(index + 1);
    assert.equal(simulation.session.unfinished, false);
    assert.equal(simulation.session.state, "ready");
  } catch (error) {
    throw new Error(`${what}: ${error.message} [${simulation.states.join(", ")}]`, { cause: error });
  }
}

const KINDS = {
  pcm: { open: {} },
  "pcm without pacing": { open: { max_lead_ms: null } },
  opus: { open: { format: "opus", max_lead_ms: null } },
  auto: { open: { format: "auto", max_lead_ms: null } },
  "opus, played": { open: { format: "opus" } },
  "another process, pcm": { open: { max_lead_ms: null }, server: { epochs: true } },
  "another process, opus": { open: { format: "opus", max_lead_ms: null }, server: { epochs: true } },
  "another process, auto": { open: { format: "auto", max_lead_ms: null }, server: { epochs: true } },
  "no word times": { open: { max_lead_ms: null }, server: { words: false } },
  "nothing is kept": { open: { max_lead_ms: null }, server: { ttl: 0 } },
};

for (const [index, [kind, options]] of Object.entries(KINDS).entries()) {
  const step = index < 4 ? 1 : 3; // the rest is a variation of these four

  test(`${kind}: a fault at every ${step === 1 ? "message" : "third message"}`, () => {
    const whole = talk(options);
    verify(whole, "no fault");
    assert.equal(whole.session.statistics.resumes, 0);
    let schedules = 0;
    for (const side of ["s", "c"]) {
      for (const fault of ["cut", "cut after", "hole", "pause", "forget", ...(side === "s" ? ["lose", "twice"] : [])]) {
        for (let number = 1; number <= Math.min(whole.counts[side], 80); number += step) {
          const faults = { [`${side}${number}`]: fault };
          verify(talk({ ...options, faults }), JSON.stringify(faults));
          schedules++;
        }
      }
    }
    assert.ok(schedules > 250 / step);
  });

  test(`${kind}: many faults`, () => {
    for (let seed = 0; seed < 200; seed++) {
      const random = seeded(seed);
      const faults = {};
      for (let count = 2 + random() * 5; count > 0; count--) {
        const side = random() < 0.6 ? "s" : "c";
        const fault = ["cut", "cut after", "hole", "pause", "twice", "forget"][Math.floor(random() * 6)];
        const isFatal = (each) => each === "forget" || options.server?.ttl === 0;
        if (!isFatal(fault) || Object.values(faults).filter(isFatal).length < 3)
          faults[`${side}${1 + Math.floor(random() * 90)}`] = fault;
      }
      verify(talk({ ...options, faults, seed }), `seed ${seed}, ${JSON.stringify(faults)}`);
    }
  });
}

test("interrupted anywhere, on lines that break anywhere", () => {
  let cancelled = 0;
  for (let seed = 0; seed < 600; seed++) {
    const random = seeded(1_000 + seed);
    const kinds = Object.values(KINDS);
    const options = kinds[Math.floor(random() * kinds.length)];
    const faults = {};
    for (let count = random() * 3; count > 0; count--) {
      const fault = ["cut", "cut after", "hole", "pause", "forget"][Math.floor(random() * 5)];
      faults[`${random() < 0.6 ? "s" : "c"}${1 + Math.floor(random() * 60)}`] = fault;
    }
    const simulation = new Simulation({ ...options, faults, seed }).start();
    const { session } = simulation;
    if (options.open.max_lead_ms !== null) simulation.play();
    const which = [null, 1, 2][Math.floor(random() * 3)];
    const when = Math.floor(random() * 900);
    const before = [];
    simulation.at(5, () => simulation.do(session.begin({}, 5)));
    simulation.at(6, () => (simulation.say(1, TEXTS[0]), random() < 0.7 && simulation.do(session.end(6))));
    simulation.at(7, () => simulation.do(session.begin({}, 7)));
    simulation.at(8, () => (simulation.say(2, TEXTS[1]), simulation.do(session.end(8))));
    simulation.at(when, () => {
      const alive = [1, 2].filter((number) => when > 8 && !simulation.of(number).over && (which ?? number) === number);
      simulation.do(session.cancel(which, random() < 0.5 ? null : 100, when));
      for (const number of alive) before.push([number, simulation.of(number).samples.length]);
    });
    simulation.at(when + 10, () => simulation.do(session.begin({}, simulation.now)));
    simulation.at(when + 11, () => (simulation.say(3, "And on."), simulation.do(session.end(simulation.now))));
    for (let until = 2_000; until <= 60_000; until += 500) {
      try {
        simulation.run(until);
      } catch (error) {
        throw new Error(`seed ${seed}: ${error.message}`, { cause: error });
      }
      if (!session.unfinished && session.state === "ready") break;
    }
    const states = simulation.states.join(", ");
    const what = `seed ${seed}, ${JSON.stringify({ options, which, when, faults })} [${states}]`;
    assert.deepEqual(simulation.server.errors, [], what);
    assert.equal(session.unfinished, false, what);
    for (const [number, samples] of before) {
      const { over, samples: heard } = simulation.of(number);
      assert.ok(over, what);
      assert.ok(heard.length <= samples, `${what}: ${heard.length} after ${samples}`);
      cancelled += over.type === "cancelled" ? 1 : 0;
    }
    const last = session.newest;
    assert.equal(simulation.of(last).over?.type, "done", what);
    simulation.check(last);
  }
  assert.ok(cancelled > 200);
});
