// What the operator's view makes of the server's answers.

import assert from "node:assert/strict";
import { test } from "node:test";
import { LEVELS, ageOf, machines, merged, shareOf, toLevel, toSettings } from "../../../../mindspore_serving/frontends/page/static/operate/states.js";

test("every level of the log is told by its settings", () => {
  for (const level of LEVELS) assert.equal(toLevel(toSettings(level)), level);
  assert.deepEqual(toSettings("warning"), { log_verbose_level: 0, log_info: false, log_warning: true, log_error: true });
});

test("what is loaded has its workers, what could be has a reason, and other methods are no servables", () => {
  const workers = [{ node: "", state: "ready" }];
  const servables = [{ name: "a", version: 2, methods: { f: {}, g: {} }, workers }];
  const index = [
    { name: "b", version: "", state: "UNAVAILABLE", reason: "it is not loaded" },
    { name: "a", version: "2", state: "READY", reason: "" },
    { name: "a.f", version: "2", state: "READY", reason: "" },
    { name: "a.other", version: "1", state: "READY", reason: "" },
  ];
  const [a, other, b] = merged(index, servables);
  assert.deepEqual(a, { name: "a", isLoaded: true, versions: [{ version: "2", state: "READY", reason: "", workers }] });
  assert.equal(other.name, "a.other");
  assert.deepEqual([b.isLoaded, b.versions[0].reason, b.versions[0].workers], [false, "it is not loaded", []]);
});

test("the loaded share is that of a version which is loading", () => {
  assert.equal(shareOf({ state: "LOADING", reason: "still loading, 40 %" }), 0.4);
  assert.equal(shareOf({ state: "LOADING", reason: "" }), null);
  assert.equal(shareOf({ state: "UNAVAILABLE", reason: "the disk is 100 % full" }), null);
});

test("machines have the workers of all servables, and the server's own is always there", () => {
  const at = (node, state) => ({ node, state });
  const found = machines([
    { name: "a", workers: [at("blue", "ready"), at("blue", "restarting")] },
    { name: "b", workers: [at("blue", "ready")] },
  ]);
  assert.deepEqual(found, [
    { node: "", ready: 0, others: 0, servables: [] },
    { node: "blue", ready: 2, others: 1, servables: ["a", "b"] },
  ]);
});

test("an age has the largest unit that it fills", () => {
  const ages = [0, 59, 60, 3599, 7200, 86399, 200000].map((seconds) => ageOf(seconds));
  assert.deepEqual(ages.map(([key, { count }]) => `${key} ${count}`), [
    "age.seconds 0", "age.seconds 59", "age.minutes 1", "age.minutes 59", "age.hours 2", "age.hours 23", "age.days 2",
  ]);
});
