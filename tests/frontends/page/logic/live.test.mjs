// What charts show: points over time, rates, and the history of the server.

import assert from "node:assert/strict";
import { test } from "node:test";
import { inOrder, rowsOf } from "../../../../mindspore_serving/frontends/page/static/live/past.js";
import { Points } from "../../../../mindspore_serving/frontends/page/static/live/points.js";
import { size } from "../../../../mindspore_serving/frontends/page/static/timing.js";
import { rates } from "../../../../mindspore_serving/frontends/page/static/live/rates.js";

test("an hour is kept, and no more than it takes to draw it", () => {
  const points = new Points();
  for (let second = 0; second <= 2 * 3600; second += 1) points.push(second, 1000 * second);
  const all = points.since(0);
  assert.ok(all.length < 850, `${all.length} points`);
  assert.ok(all[0].time >= 3500000 && all[0].time <= 3700000);
  assert.equal(all.at(-1).value, 7200);
});

test("a line has a gap where no value is known", () => {
  const points = new Points();
  [[1, 0], [2, 1000], [null, 2000], [3, 3000], [4, 60000]].forEach(([value, time]) => points.push(value, time));
  assert.deepEqual(points.runs(0).map((run) => run.map((one) => one.value)), [[1, 2], [3], [4]]);
  assert.equal(points.nearest(2200, 0).value, 3);
  assert.equal(new Points().nearest(0, 0), null);
});

test("a row of the history is like one of /servables", () => {
  const columns = ["age", "requests.total", "p50_ms", "engine.num_steps"];
  const found = rowsOf({ columns, servables: [{ name: "a", version: 1, rows: [[2, 5, null, null], [1, 6, 3, 4]] }] });
  assert.deepEqual(found.get('["a",1]'), [
    { age: 2000, row: { age: 2, requests: { total: 5 } } },
    { age: 1000, row: { age: 1, requests: { total: 6 }, p50_ms: 3, engine: { num_steps: 4 } } },
  ]);
});

test("sizes have about three digits", () => {
  assert.deepEqual([0, 5000, 98e6, 999.9e6, 1234e6].map(size), ["0 kB", "5.0 kB", "98 MB", "1.00 GB", "1.2 GB"]);
});

test("language models come first, then names in order", () => {
  const rows = [{ name: "b", version: 1 }, { name: "a", version: 2 }, { name: "z", version: 1, model: {} }, { name: "a", version: 1 }];
  assert.deepEqual(inOrder(rows).map((one) => one.name + one.version), ["z1", "a1", "a2", "b1"]);
});

test("a rate is of two readings, and unknown where totals began again", () => {
  const row = (total) => ({ requests: { total } });
  assert.equal(rates({ row: row(1), time: 0 }, row(5), 2000).requests, 2);
  assert.equal(rates({ row: row(5), time: 0 }, row(1), 2000).requests, null);
  assert.equal(rates(null, row(1), 0).requests, null);
  assert.equal(rates(null, {}, 0).requests, undefined);
});
