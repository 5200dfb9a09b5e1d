"""Limits that servers count together: by Valkey or Redis, by stored state, and while these fail."""

import gc
import time
from functools import partial

import pytest

pytest.importorskip("redis")

from mindspore_serving.aio import on_thread
from mindspore_serving.errors import StartError
from mindspore_serving.frontends.keys import ApiKey, Keys, TenantTable
from mindspore_serving.frontends.state.counts import StateCounts
from mindspore_serving.frontends.state.store import StateStore
from mindspore_serving.frontends.tenants import shared_limits
from mindspore_serving.frontends.tenants.limits import DAY, DayUse, LimitReached, Limits, LimitState
from mindspore_serving.frontends.tenants.shared_limits import SharedLimits
from mindspore_serving.stores import circuit
from mindspore_serving.stores.kinds import open_counts
from mindspore_serving.stores.redis_store import PASSWORD
from mindspore_serving.stores.shared_counts import PREFIX
from tests.stores import key_value_server
from tests.stores.key_value_server import KeyValueServer
from tests.waiting import PATIENCE

NOON = 20_000 * DAY + DAY / 2
ALL = Limits(requests_per_minute=4, tokens_per_minute=60, tokens_per_day=100)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with KeyValueServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(autouse=True)
def password(monkeypatch):
    monkeypatch.setenv(PASSWORD, key_value_server.PASSWORD)


class Replica:
    """A server with one key, whose counts it exchanges by `exchange`."""

    def __init__(self, exchange, limits=ALL):
        self.table = TenantTable()
        self.keys = Keys([ApiKey("secret-of-tests", "Anna", limits)], self.table)
        (self.tenant,) = self.keys.tenants.values()
        self.shared = SharedLimits(exchange, self.table, "the store", 1.0)

    @property
    def left(self):
        return {left.kind: left.remaining for left in self.tenant.allowances()}

    def use(self, tokens):
        self.tenant.admit().release()
        self.tenant.charge(tokens)


def by_redis(url, timeout=PATIENCE):
    counts = open_counts("limits_store", url, timeout)
    return partial(on_thread, "limits of tests", counts.exchange)


async def settle(*replicas):
    """Exchange so often that each server knows of all."""
    for _ in range(2):
        for replica in replicas:
            await replica.shared.exchange()


# Decisions


def test_use_on_other_servers_is_taken_out_of_the_buckets_and_of_the_day():
    state = LimitState("Anna")
    state.learn(DayUse(), ALL, NOON)
    state.learn(DayUse(1, 50), ALL, NOON)
    left = {row.kind: row.remaining for row in state.allowances(ALL, NOON)}
    assert left == {"requests": 3, "tokens": 10, "tokens-day": 50}
    state.learn(DayUse(1, 50), ALL, NOON)  # nothing new
    assert {row.kind: row.remaining for row in state.allowances(ALL, NOON)} == left
    state.learn(DayUse(1, 100), ALL, NOON)
    with pytest.raises(LimitReached, match="tokens per day"):
        state.check_tokens(ALL, NOON)
    state.check_tokens(ALL, NOON + DAY)  # of a new day, in which nothing was used elsewhere
    assert state.local_use(NOON + DAY) == DayUse()


def test_the_first_counts_are_of_a_day_and_not_of_this_minute():
    state = LimitState("Anna")
    state.learn(DayUse(1000, 90), ALL, NOON)
    left = {row.kind: row.remaining for row in state.allowances(ALL, NOON)}
    assert left == {"requests": 4, "tokens": 60, "tokens-day": 10}


def test_lost_counts_of_other_servers_give_nothing_back_to_a_minute():
    state = LimitState("Anna")
    for used in (0, 30, 0, 10):  # the store has lost its memory
        state.learn(DayUse(0, used), ALL, NOON)
    left = {row.kind: row.remaining for row in state.allowances(ALL, NOON)}
    assert left == {"requests": 4, "tokens": 20, "tokens-day": 90}


# Valkey or Redis


async def test_servers_count_the_requests_and_tokens_of_a_key_together(server):
    server.client.flushall()
    first, second = (Replica(by_redis(server.url)) for _ in range(2))
    await settle(first, second)
    first.use(25)
    second.use(30)
    await settle(first, second)
    assert first.left["tokens-day"] == second.left["tokens-day"] == 45
    assert first.left["requests"] == second.left["requests"] == 2
    assert abs(first.left["tokens"] - second.left["tokens"]) <= 1
    second.use(45)
    await settle(second, first)
    with pytest.raises(LimitReached, match="100 tokens per day"):
        first.tenant.check_tokens()
    assert first.shared.counts == {"ok": 6, "failed": 0, "wrong": 0}
    (key,) = server.client.keys(f"{PREFIX}*")
    assert 0 < server.client.ttl(key) <= 2 * DAY
    assert b"secret-of-tests" not in key


async def test_a_budget_of_a_day_survives_a_restart_and_a_store_without_memory(server):
    server.client.flushall()
    first = Replica(by_redis(server.url))
    first.use(70)
    await settle(first)
    restarted = Replica(by_redis(server.url))
    await settle(restarted)
    assert restarted.left["tokens-day"] == 30
    server.client.flushall()  # as a store does that keeps nothing on disk
    await settle(first, restarted)
    assert restarted.left["tokens-day"] == 30


async def test_a_lost_answer_counts_nothing_twice(server, monkeypatch):
    monkeypatch.setattr(circuit, "FIRST_PAUSE", 1e-9)
    server.client.flushall()
    exchange = by_redis(server.url)

    async def lose(rows):
        await exchange(rows)
        raise OSError("the answer was lost")

    first, second = Replica(lose), Replica(by_redis(server.url))
    first.use(10)
    for _ in range(3):
        await first.shared.exchange()
    await settle(second)
    assert second.left["tokens-day"] == 90
    assert first.shared.counts["failed"] == 3


async def test_a_store_that_stops_is_a_warning_and_each_server_counts_alone(tmp_path):
    with KeyValueServer(tmp_path) as server:
        replica = Replica(by_redis(server.url, timeout=0.1))
        await settle(replica)
        server.stop()
        replica.use(10)
        await replica.shared.exchange()
        assert replica.shared.counts["failed"] == 1
        await replica.shared.exchange()  # not tried again at once
        assert replica.shared.counts["failed"] == 1
        assert replica.left["tokens-day"] == 90
    assert replica.shared._circuit.is_failing


async def test_a_warning_is_logged_at_the_first_failure_and_at_the_end(monkeypatch):
    monkeypatch.setattr(circuit, "FIRST_PAUSE", 1e-9)
    warnings, answers = [], iter([OSError("gone"), OSError("gone"), {}])
    monkeypatch.setattr(shared_limits.log, "warning", lambda *words: warnings.append(words[0]))

    async def exchange(rows):
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    replica = Replica(exchange)
    for _ in range(3):
        await replica.shared.exchange()
    assert ["alone" in text for text in warnings] == [True, False]


WRONG = (b"", b"x y", b"1", b"nan 1", b"-1 1", b"inf 1", b"1 2 3", b"\xff")


@pytest.mark.parametrize("text", WRONG)
async def test_wrong_counts_of_other_servers_are_left_out(server, text):
    server.client.flushall()
    replica = Replica(by_redis(server.url))
    key = f"{PREFIX}{replica.tenant.owner}:{int(time.time() // DAY)}"
    server.client.hset(key, "other", text)
    server.client.hset(key, "third", "1.0 20.0")
    await replica.shared.exchange()
    assert replica.left["tokens-day"] == 80
    assert replica.shared.counts["wrong"] == 1


async def test_a_tenant_with_use_is_held_for_its_day(server):
    server.client.flushall()
    replica = Replica(by_redis(server.url))
    replica.use(10)
    await settle(replica)
    key = replica.tenant.key
    del replica.tenant
    replica.keys.replace([])  # as the file of keys, or an issuer with many subjects
    gc.collect()
    replica.keys.replace([key])
    (replica.tenant,) = replica.keys.tenants.values()
    await settle(replica)
    assert replica.left["tokens-day"] == 90


async def test_idle_keys_and_keys_without_limits_over_time_are_not_exchanged(monkeypatch):
    rows_of_calls = []

    async def exchange(rows):
        rows_of_calls.append(dict(rows))
        return {}

    replica, other = Replica(exchange), Replica(exchange, Limits(max_requests=1))
    await other.shared.exchange()
    await replica.shared.exchange()
    monkeypatch.setattr(shared_limits, "ACTIVE_SECONDS", -1.0)
    await replica.shared.exchange()
    assert len(rows_of_calls) == 1


@pytest.mark.parametrize("url", ["file:///tmp/x", "s3://bucket/x", "memory://x"])
def test_stores_that_cannot_count_are_start_errors(url):
    with pytest.raises(StartError, match="limits_store is of a store that has no counters"):
        open_counts("limits_store", url, 1.0)


# Stored state


async def test_a_budget_survives_a_restart_in_the_state(tmp_path):
    for expected in (100, 60, 20):
        store = await on_thread("state", StateStore, str(tmp_path))
        replica = Replica(StateCounts(store).exchange)
        await settle(replica)
        assert replica.left["tokens-day"] == expected
        replica.use(30)
        await settle(replica)
        replica.use(10)
        await settle(replica)
        await store.close()
