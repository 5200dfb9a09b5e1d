"""Answers in a store that servers share: hits, misses, and stores that are wrong, slow or gone."""

import asyncio
import threading
import time
from dataclasses import asdict

import msgspec
import pytest

pytest.importorskip("redis")
pytest.importorskip("zstandard")

from mindspore_serving.core.service import HIT, HIT_STORE, MISS
from mindspore_serving.errors import Code, DeadlineExceeded, Overloaded
from mindspore_serving.master import shared_answers
from mindspore_serving.master.shared_answers import MAGIC, AnswerLevel, AnswerThreads, StoredAnswer
from mindspore_serving.stores import circuit
from mindspore_serving.stores.base import StoreOptions
from mindspore_serving.stores.kinds import open_store
from mindspore_serving.stores.redis_store import PASSWORD, PREFIX
from mindspore_serving.stores.sealing import Seal
from tests.master.served import Served, Worker, turn
from tests.stores import key_value_server
from tests.stores.key_value_server import KeyValueServer
from tests.waiting import PATIENCE, until

OTHER = b'{"instances":[{"x":7}]}'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with KeyValueServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(autouse=True)
def password(monkeypatch):
    monkeypatch.setenv(PASSWORD, key_value_server.PASSWORD)
    monkeypatch.setattr(circuit, "FIRST_PAUSE", PATIENCE)


class Replica(Served):
    """A server with a worker, whose method "m" shares its answers by the store at `url`."""

    def __init__(self, url, *, scope=b"model", secret=b"", timeout=PATIENCE, seconds=600.0, **more):
        super().__init__(worker := Worker(), cache_mb=1, **more)
        self.worker = worker
        store, num_readers = open_store(
            StoreOptions("cache_store", url, 1 << 30, 1 << 20, max_seconds=600.0, timeout=timeout)
        )
        self.threads = AnswerThreads(store, num_readers, timeout)
        self.level = AnswerLevel(self.threads, Seal(MAGIC, scope, secret), seconds)
        self.method.shared_answers = self.level

    @property
    def results(self):
        """Counts of the store that are not 0."""
        return {name: count for name, count in asdict(self.level.counts).items() if count}

    async def compute(self, **request):
        """Send a request that is a miss, and wait until its answer is in the store."""
        reply = await self.ask(**request)
        await until(lambda: self.results.get("written") or self.results.get("unwritten"))
        return reply

    async def ask(self, **request):
        """Send a request, and answer it as the worker if it gets there."""
        number, sent = len(self.replies), self.worker.num_sent
        self.submit(**request)
        await until(lambda: self.replies[number] or self.worker.num_sent > sent)
        if self.worker.held:
            self.answer(self.worker)
        return self.replies[number]


@pytest.fixture(params=["redis", "file", "memory"])
def url(request, server, tmp_path):
    """Return the URL of an empty store."""
    if request.param == "redis":
        server.client.flushall()
        return server.url
    return f"{request.param}://{tmp_path}/store"


async def test_an_answer_of_a_server_is_a_hit_on_another_and_then_in_its_memory(url):
    first, second = Replica(url), Replica(url)
    computed = await first.compute()
    shared, remembered = await second.ask(), await second.ask()
    states = [reply.cache for reply in (computed, shared, remembered)]
    assert states == [MISS, HIT_STORE, HIT]
    assert list(shared.instances) == list(remembered.instances) == list(computed.instances)
    assert second.worker.num_sent == 0
    assert (first.results, second.results) == ({"miss": 1, "written": 1}, {"hit": 1})
    counts = second.method.cache.counts
    assert (counts.hit, counts.hit_store, counts.miss, counts.joined) == (1, 1, 0, 0)
    assert dict(second.method.series.codes) == {0: 2}


@pytest.mark.parametrize(
    "changes", [{"scope": b"other model"}, {"secret": b"of others"}, {"seconds": 1e-9}]
)
async def test_answers_of_other_models_or_secrets_and_old_answers_are_misses(url, changes):
    first, second = Replica(url), Replica(url, **changes)
    await first.compute()
    assert (await second.ask()).cache == MISS
    assert second.results["miss"] == 1


async def test_tenants_share_no_answers_of_a_store_if_so_configured(url):
    first, second = (Replica(url, cache_per_key=True) for _ in range(2))
    await first.compute(tenant="a")
    assert (await second.ask(tenant="b")).cache == MISS
    assert (await second.ask(tenant="a")).cache == HIT_STORE


DAMAGES = {
    "short": lambda value: value[:20],
    "changed": lambda value: value[:-1] + b"x",
    "pickle": lambda value: b"cos\nsystem\n(S'false'\ntR.",
    "too long": lambda value: value + bytes(shared_answers.MAX_STORED),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_wrong_values_are_misses_and_are_removed(server, damage):
    server.client.flushall()
    first, second = Replica(server.url), Replica(server.url)
    await first.compute()
    (key,) = server.client.keys(f"{PREFIX}*")
    server.client.set(key, DAMAGES[damage](server.client.get(key)))
    reply = await second.ask()
    assert (reply.cache, reply.failure, second.results["wrong"]) == (MISS, None, 1)
    await until(lambda: second.results.get("written"))  # by the right one
    assert (await Replica(server.url).ask()).cache == HIT_STORE


async def test_a_sealed_value_that_is_no_answer_is_a_miss(server):
    replica = Replica(server.url)
    content = msgspec.msgpack.encode(["yesterday", "no bytes"])
    name = replica.level._name(replica.method.cache.key_of("", "ms_json", OTHER))
    value = replica.level.seal.head(name, content) + content
    server.client.set(PREFIX + name, value)
    assert (await replica.ask(body=OTHER)).cache == MISS
    assert replica.results["wrong"] == 1


async def test_equal_requests_share_a_lookup(server):
    server.client.flushall()
    first, second = Replica(server.url), Replica(server.url)
    await first.compute()
    for _ in range(3):
        second.submit()
    await until(lambda: all(second.replies))
    assert [reply.cache for reply in second.replies] == [HIT_STORE] * 3
    assert second.results == {"hit": 1}
    counts = second.method.cache.counts
    assert (counts.hit_store, counts.joined, second.method.share.num_used) == (1, 2, 0)
    assert dict(second.method.series.codes) == {0: 3}


async def test_a_stopped_store_delays_requests_once_by_the_timeout(tmp_path):
    with KeyValueServer(tmp_path) as server:
        await Replica(server.url).compute()
        replica = Replica(server.url, timeout=0.05)
        server.stop()
        assert (await replica.ask()).cache == MISS
        assert {"late", "failed"} & replica.results.keys()
        assert (await replica.ask(body=OTHER)).cache == MISS
        assert replica.results["skipped"] == 1  # the store was not asked
        server.go_on()
        assert (await Replica(server.url).ask()).cache == HIT_STORE


async def test_a_store_that_is_gone_is_a_miss(tmp_path):
    with KeyValueServer(tmp_path) as server:
        replica = Replica(server.url)
    reply = await replica.ask()
    assert (reply.cache, reply.failure) == (MISS, None)
    assert replica.results["failed"] == 1
    await until(lambda: replica.results.get("unwritten"))


async def test_a_full_store_takes_no_answers_and_is_read(tmp_path):
    options = ["--maxmemory", "1500kb", "--maxmemory-policy", "noeviction"]
    with KeyValueServer(tmp_path, *options) as server:
        replica = Replica(server.url)
        await replica.compute()
        server.client.set("other", bytes(100_000))
        while server.client.info("memory")["used_memory"] < 1_500_000:
            server.client.setrange("other", server.client.strlen("other") + 50_000, b"x")
        await replica.ask(body=OTHER)
        await until(lambda: replica.results.get("unwritten"))
        assert (await Replica(server.url).ask()).cache == HIT_STORE


class Held:
    """A store whose calls wait for the test."""

    errors = (OSError,)

    def __init__(self, value=None):
        self.is_free, self.value = threading.Event(), value

    def get(self, name, max_bytes):
        self.is_free.wait(PATIENCE)
        return self.value

    def put(self, name, parts): ...
    def close(self): ...


def held_replica(store, timeout=PATIENCE):
    replica = Replica("memory://unused")
    replica.level._threads = AnswerThreads(store, 1, timeout)
    return replica


async def test_a_request_may_end_while_its_answer_is_looked_up():
    replica = held_replica(store := Held())
    call = replica.submit()
    replica.submit(timeout=0.01)
    await until(lambda: replica.replies[1])
    assert isinstance(replica.failure(1), DeadlineExceeded)
    call.cancel()
    replica.submit(body=OTHER, timeout=0.01)
    await until(lambda: replica.replies[2])
    assert isinstance(replica.failure(2), DeadlineExceeded)
    store.is_free.set()
    await until(lambda: not replica.level._threads._num_lookups)
    assert replica.replies[0] is None
    assert replica.worker.num_sent == 0
    assert dict(replica.method.series.codes) == {Code.DEADLINE_EXCEEDED: 2, Code.CANCELLED: 1}
    assert (replica.inference._running, replica.method.share.num_used) == ({}, 0)


async def test_the_first_of_equal_requests_may_leave_during_the_lookup():
    replica = held_replica(store := Held())
    first = replica.submit()
    replica.submit()
    first.cancel()
    store.is_free.set()
    await until(lambda: replica.worker.held)
    replica.answer(replica.worker)
    assert (replica.replies[0], replica.replies[1].cache) == (None, MISS)
    assert dict(replica.method.series.codes) == {Code.CANCELLED: 1, 0: 1}
    assert replica.method.share.num_used == 0


async def test_a_request_without_room_after_its_lookup_is_refused(server):
    server.client.flushall()
    replica = Replica(server.url, max_requests=1)
    replica.submit()
    await until(lambda: replica.worker.held)
    replica.submit(body=OTHER)
    await until(lambda: replica.replies[1])
    assert isinstance(replica.failure(1), Overloaded)
    replica.answer(replica.worker)
    assert (replica.inference._running, replica.method.share.num_used) == ({}, 0)


async def test_lookups_and_writes_are_bounded(monkeypatch):
    monkeypatch.setattr(shared_answers, "MAX_LOOKUPS", 2)
    monkeypatch.setattr(shared_answers, "MAX_QUEUED", 0)
    replica = held_replica(store := Held())
    for number in range(4):
        replica.submit(body=b'{"instances":[{"x":%d}]}' % number)
    await until(lambda: replica.worker.num_sent == 2)  # that have no room
    replica.answer(replica.worker)
    assert replica.results == {"skipped": 2, "unwritten": 2}
    store.is_free.set()
    await until(lambda: replica.worker.num_sent == 4)


async def test_the_age_of_an_answer_goes_on_in_memory(server):
    server.client.flushall()
    await Replica(server.url).compute()
    (key,) = server.client.keys(f"{PREFIX}*")
    replica = Replica(server.url, cache_seconds=600.0)
    sealed = replica.level.seal.open(key.decode().removeprefix(PREFIX), server.client.get(key))
    answer = msgspec.msgpack.decode(sealed[1], type=StoredAnswer)
    old = msgspec.msgpack.encode(StoredAnswer(time.time() - 599, answer.instances))
    name = key.decode().removeprefix(PREFIX)
    server.client.set(key, replica.level.seal.head(name, old) + old)
    assert (await replica.ask()).cache == HIT_STORE
    (entry,) = replica.method.cache._answers[""].values()
    assert entry.expires <= time.monotonic() + 1.5


async def test_queued_answers_are_written_at_the_end(server):
    server.client.flushall()
    replica = Replica(server.url)
    await replica.ask()
    await asyncio.get_running_loop().run_in_executor(None, replica.threads.close)
    assert len(server.client.keys(f"{PREFIX}*")) == 1
    await turn()
