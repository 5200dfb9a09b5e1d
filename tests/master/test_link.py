"""The master's end of a channel, with the test as the worker at the other end."""

import asyncio
import os
import socket
import threading
from types import SimpleNamespace

import pytest

from mindspore_serving.cluster.base import Launched, WorkerLocation
from mindspore_serving.core.service import Reply
from mindspore_serving.errors import Code, InvalidInputs, StageFailed, StartError
from mindspore_serving.ipc import arena as arenas
from mindspore_serving.ipc.arena import Arena, ArenaView
from mindspore_serving.ipc.messages import (
    CallReply,
    Cancel,
    Done,
    Fault,
    PartReply,
    RequestPart,
    ShareMemory,
    Slice,
    ToWorker,
    Work,
    WorkerCall,
    WorkerReady,
)
from mindspore_serving.master import payload_lender as lending
from mindspore_serving.master import storing
from mindspore_serving.master.link import Link
from mindspore_serving.master.memory_shares import share_memory
from mindspore_serving.master.request import PendingPart, PendingRequest
from mindspore_serving.process.channel import encode, message_decoder
from mindspore_serving.process.vocabulary import Exit, Failed, Leaving
from tests.waiting import PATIENCE, until

LARGE = b"L" * 100_000


class Process:
    """Only notes that it was killed."""

    pid = 4711
    is_killed = False

    def kill(self):
        self.is_killed = True


class Owner:
    """Keeps what the link reports."""

    def __init__(self):
        self.calls, self.leaving, self.lost = [], [], []

    def on_call(self, link, call):
        self.calls.append(call)

    def on_leaving(self, link):
        self.leaving.append(link)

    def on_lost(self, link):
        self.lost.append(link)


class Strategy:
    """Keeps the answers to the parts that it gave to the link."""

    def __init__(self):
        self.answers, self.sizes = [], []

    def on_answers(self, link, answers):
        self.answers += answers
        self.sizes.append(len(answers))


class Bench:
    """A link, and a worker played by the test: its socket and its side of both arenas."""

    def __init__(self):
        ours, self.stream = socket.socketpair()
        self.stream.setblocking(False)
        to_worker, to_master = arenas.create(), arenas.create()
        self.view, self.arena = ArenaView(to_worker), Arena(to_master)
        self.master_arena = Arena(to_worker)
        launched = Launched(Process(), ours, self.master_arena, ArenaView(to_master))
        os.close(to_worker)
        os.close(to_master)
        self.owner, self.strategy = Owner(), Strategy()
        self.link = Link(launched, "worker", self.owner)
        self._frames = message_decoder(ToWorker)
        self._messages = []

    def part(self, *chunks, deadline=None):
        request = PendingRequest("m", lambda reply: None, lambda request, code: None, 0.0)
        request.deadline = deadline
        return PendingPart(request, 0, "ms_json", chunks or (b"{}",))

    def send(self, *parts, now=0.0):
        self.link.send_work(parts, now, self.strategy)

    def say(self, *messages):
        self.stream.sendall(b"".join(map(encode, messages)))

    async def receive(self):
        """The next message from the master."""
        loop = asyncio.get_running_loop()
        while not self._messages:
            self._messages += self._frames.feed(await loop.sock_recv(self.stream, 1 << 16))
        return self._messages.pop(0)

    async def until(self, condition):
        await until(condition)

    def close(self):
        self.link.close()
        self.stream.close()
        self.view.close()
        self.arena.close()


@pytest.fixture
async def bench():
    made = Bench()
    yield made
    made.close()


# --- work and answers ---------------------------------------------------------------------------


async def test_parts_leave_in_a_single_message_with_ids_and_remaining_time(bench):
    parts = [bench.part(b"1", b"2"), bench.part(b"3", deadline=103.5), bench.part(deadline=99.0)]
    bench.send(*parts, now=100.0)
    work = await bench.receive()
    assert work == Work(
        [
            RequestPart(1, "m", "ms_json", [b"1", b"2"], None),
            RequestPart(2, "m", "ms_json", [b"3"], 3.5),
            RequestPart(3, "m", "ms_json", [b"{}"], 0.0),  # late already, never negative
        ]
    )
    assert [part.link for part in parts] == [bench.link] * 3


async def test_answers_find_their_parts(bench):
    first, second = bench.part(), bench.part()
    bench.send(first, second)
    bench.say(Done([PartReply(2, [b"b"]), PartReply(1, [b"a"])]))
    await bench.until(lambda: bench.strategy.answers)
    assert bench.strategy.answers == [(second, Reply([b"b"])), (first, Reply([b"a"]))]
    assert bench.link.parts == {}


async def test_faults_and_rejections_become_errors_again(bench):
    bench.send(bench.part(), bench.part())
    bench.say(
        Done(
            [
                PartReply(1, [b"a", b""], [None, Fault(3, "raised")]),
                PartReply(2, [], rejected=Fault(2, "bad")),
            ]
        )
    )
    await bench.until(lambda: bench.strategy.answers)
    (_, faulty), (_, rejected) = bench.strategy.answers
    assert faulty.failures() == [None, (3, "raised")]
    assert isinstance(faulty.faults[1], StageFailed)
    assert isinstance(rejected.failure, InvalidInputs)
    assert str(rejected.failure) == "bad"


async def test_a_stream_keeps_its_part_until_the_last_reply(bench):
    part = bench.part()
    bench.send(part)
    bench.say(Done([PartReply(1, [b"a"], is_last=False)]))
    await bench.until(lambda: bench.strategy.answers)
    assert bench.link.parts == {1: part}
    bench.say(Done([PartReply(1, [b"b"])]))
    await bench.until(lambda: len(bench.strategy.answers) == 2)
    assert [reply.is_last for _, reply in bench.strategy.answers] == [False, True]
    assert bench.link.parts == {}


async def test_answers_go_back_the_way_their_parts_came(bench):
    other = Strategy()
    mine, yours, mine_too = bench.part(), bench.part(), bench.part()
    bench.send(mine)
    bench.link.send_work([yours], 0.0, other)
    bench.send(mine_too)
    bench.say(Done([PartReply(number, [b"y"]) for number in (1, 2, 3)]))
    await bench.until(lambda: other.answers)
    assert [part for part, _ in other.answers] == [yours]
    assert [part for part, _ in bench.strategy.answers] == [mine, mine_too]
    assert bench.strategy.sizes == [2]  # together, as they came


async def test_the_parts_of_a_closed_link_can_be_taken_once(bench):
    first, second = bench.part(), bench.part()
    bench.send(first, second)
    bench.say(Done([PartReply(1, [b"a"])]))
    await bench.until(lambda: bench.strategy.answers)
    assert bench.link.take_parts() == [second]
    assert bench.link.take_parts() == []


async def test_a_cancelled_part_is_kept_until_the_answer(bench):
    part = bench.part()
    bench.send(part)
    await bench.receive()
    bench.link.cancel(part)
    assert await bench.receive() == Cancel([1])
    assert bench.link.parts == {1: part}


# --- shared memory ------------------------------------------------------------------------------


async def test_a_large_chunk_goes_through_the_arena_and_its_space_comes_back(bench):
    bench.send(bench.part(LARGE, b"small"))
    (part,) = (await bench.receive()).parts
    assert isinstance(part.chunks[0], Slice)
    assert bytes(bench.view.get(part.chunks[0])) == LARGE
    assert part.chunks[1] == b"small"
    bench.say(Done([PartReply(1, [b"y"])]))
    await bench.until(lambda: bench.strategy.answers)
    assert not bench.master_arena._size_at


async def test_a_large_answer_is_copied_and_given_back_with_the_next_work(bench):
    bench.send(bench.part())
    await bench.receive()
    payload = bench.arena.put(LARGE)
    bench.say(Done([PartReply(1, [payload])]))
    await bench.until(lambda: bench.strategy.answers)
    assert bench.strategy.answers[0][1].instances == [LARGE]
    bench.send(bench.part())
    assert (await bench.receive()).freed == [payload.offset]


async def test_memory_that_a_stage_keeps_is_freed_by_a_later_message(bench):
    bench.send(bench.part(LARGE, LARGE))
    (part,) = (await bench.receive()).parts
    first, second = part.chunks
    bench.say(Done([PartReply(1, [b"y"], kept=[second.offset])]))
    await bench.until(lambda: bench.strategy.answers)
    assert list(bench.master_arena._size_at) == [second.offset]
    bench.say(Done([], [second.offset]))
    await bench.until(lambda: not bench.master_arena._size_at)


def lent(bench, part):
    """Where the bytes of an answer in tensors to `part` lie."""
    part.codec = "v2_raw"
    bench.send(part)
    payload = bench.arena.put(LARGE)
    bench.say(Done([PartReply(part.id, [payload])]))
    return payload


async def test_tensors_of_an_answer_are_lent_until_their_last_reference(bench):
    payload = lent(bench, bench.part())
    await bench.receive()
    await bench.until(lambda: bench.strategy.answers)
    (_, reply) = bench.strategy.answers.pop()
    first = reply.instances[0][:10]
    del reply
    bench.send(bench.part())
    assert (await bench.receive()).freed == []
    assert bytes(first) == LARGE[:10]
    del first
    bench.send(bench.part())
    assert (await bench.receive()).freed == [payload.offset]


async def test_a_lent_answer_can_be_read_when_its_worker_is_gone(bench):
    lent(bench, bench.part())
    await bench.until(lambda: bench.strategy.answers)
    bench.link.close()
    ((_, reply),) = bench.strategy.answers
    assert bytes(reply.instances[0]) == LARGE


async def test_answers_are_copied_while_clients_that_read_slowly_have_many(bench, monkeypatch):
    monkeypatch.setattr(lending, "MAX_LENT", 2 * len(LARGE))
    for _ in range(3):
        lent(bench, bench.part())
    await bench.until(lambda: len(bench.strategy.answers) == 3)
    kinds = [type(reply.instances[0]) for _, reply in bench.strategy.answers]
    assert kinds == [memoryview, memoryview, bytes]


# --- calls of the worker ------------------------------------------------------------------------


async def test_a_call_of_the_worker_reaches_the_owner_with_its_bytes(bench):
    payload = bench.arena.put(LARGE)
    bench.say(WorkerCall("s", 1, RequestPart(9, "@call_m_0", "native", [payload, b"b"], None)))
    await bench.until(lambda: bench.owner.calls)
    assert bench.owner.calls == [
        WorkerCall("s", 1, RequestPart(9, "@call_m_0", "native", [LARGE, b"b"], None))
    ]


async def test_the_answer_to_a_call_goes_back(bench):
    bench.link.answer_call(9, Reply([b"a", b""], [None, StageFailed("raised")]))
    assert await bench.receive() == CallReply(PartReply(9, [b"a", b""], [None, Fault(3, "raised")]))


async def test_a_failed_call_is_answered_with_the_reason(bench):
    bench.link.answer_call(9, Reply(failure=InvalidInputs("bad")))
    assert await bench.receive() == CallReply(
        PartReply(9, [], rejected=Fault(Code.INVALID_INPUTS, "bad"))
    )


async def test_a_large_answer_to_a_call_is_freed_when_the_worker_says_so(bench):
    bench.link.answer_call(9, Reply([LARGE]))
    (payload,) = (await bench.receive()).reply.instances
    assert bytes(bench.view.get(payload)) == LARGE
    bench.say(Done([], [payload.offset]))
    await bench.until(lambda: not bench.master_arena._size_at)
    assert bench.strategy.answers == []


# --- loading, leaving, ending -------------------------------------------------------------------


async def test_ready_resolves_loaded(bench):
    ready = WorkerReady(1, [], {})
    bench.say(ready)
    assert await bench.link.loaded == ready
    assert bench.link.is_ready
    assert bench.link.has_reported


async def test_failed_is_a_start_error_with_the_text_of_the_worker(bench):
    bench.say(Failed("no such file"))
    with pytest.raises(StartError, match="^no such file$"):
        await bench.link.loaded
    assert bench.link.has_reported
    assert not bench.link.is_ready


async def test_an_end_while_loading_is_a_start_error(bench):
    bench.stream.close()
    with pytest.raises(StartError, match="ended while loading"):
        await bench.link.loaded
    assert not bench.link.has_reported


async def test_leaving_is_reported(bench):
    bench.say(Leaving())
    await bench.until(lambda: bench.owner.leaving)
    assert bench.owner.leaving == [bench.link]


async def test_exit_is_sent(bench):
    bench.link.ask_to_exit()
    assert await bench.receive() == Exit()


async def test_the_end_is_reported_once(bench):
    bench.stream.close()
    await bench.link.closed
    bench.link.close()
    assert bench.owner.lost == [bench.link]


async def test_a_closed_link_ignores_messages_to_the_worker(bench):
    part = bench.part()
    bench.send(part)
    bench.link.close()
    bench.link.cancel(part)
    bench.link.ask_to_exit()
    bench.link.answer_call(1, Reply([b"a"]))
    assert bench.owner.lost == [bench.link]


async def test_answers_sent_before_the_end_are_not_lost(bench):
    first, second = bench.part(), bench.part()
    bench.send(first, second)
    bench.say(Done([PartReply(1, [b"a"])]))
    bench.stream.close()
    bench.link.cancel(second)  # cannot be sent any more
    await bench.link.closed
    assert bench.strategy.answers == [(first, Reply([b"a"]))]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x01\x00\x00\x00\xc1",
        encode(Exit()),
        encode(Done([PartReply(77, [b"a"])])),
        encode(Done([], [12345])),
        encode(Done([PartReply(1, [], rejected=Fault(99, "no such code"))])),
        encode(Done([PartReply(1, [Slice(1 << 40, 10)])])),
        encode(WorkerReady(1, [], {})) * 2,
    ],
    ids=[
        "length",
        "garbage",
        "direction",
        "id",
        "offset",
        "code",
        "slice",
        "ready twice",
    ],
)
async def test_a_worker_that_sends_nonsense_is_ended(bench, data):
    bench.send(bench.part())
    bench.stream.sendall(data)
    await bench.until(lambda: bench.link.process.is_killed)
    assert bench.link.end_reason


async def test_a_worker_that_fails_after_its_answers_is_killed_with_its_reason(bench):
    part = bench.part()
    bench.send(part)
    bench.say(WorkerReady(1, [], {}), Done([PartReply(1, [b"a"])]), Failed("rank 3 is lost"))
    await bench.until(lambda: bench.link.process.is_killed)
    assert bench.link.end_reason == "rank 3 is lost"
    assert bench.link.parts == {}


@pytest.mark.parametrize(
    "wrong",
    [PartReply(77, [b"a"]), PartReply(1, [b"a"]), PartReply(2, [Slice(1 << 40, 10)])],
    ids=["id", "twice", "slice"],
)
async def test_answers_before_nonsense_in_a_message_count(bench, wrong):
    first, second = bench.part(), bench.part()
    bench.send(first, second)
    bench.say(Done([PartReply(1, [b"a"]), wrong]))
    await bench.until(lambda: bench.link.process.is_killed)
    assert bench.strategy.answers == [(first, Reply([b"a"]))]
    assert bench.link.take_parts() == [second]


async def test_bytes_that_the_socket_does_not_take_are_sent_later_in_order(bench):
    chunk = b"c" * 30_000  # small enough to travel inline
    bench.send(bench.part(*[chunk] * 100))
    bench.link.ask_to_exit()
    work = await bench.receive()
    assert [len(data) for data in work.parts[0].chunks] == [30_000] * 100
    assert await bench.receive() == Exit()


async def test_a_worker_that_reads_nothing_is_ended(bench, monkeypatch):
    monkeypatch.setattr("mindspore_serving.process.async_channel.WRITE_LIMIT", 1 << 20)
    chunk = b"c" * 30_000
    bench.send(bench.part(*[chunk] * 30))
    assert not bench.link.process.is_killed
    bench.send(bench.part(*[chunk] * 30))
    assert bench.link.process.is_killed


async def test_small_parts_are_sent_while_a_large_part_is_copied(bench, monkeypatch):
    """And cancelled behind its work, if that is cancelled meanwhile."""
    arena, go_on = bench.master_arena, threading.Event()

    def put(data, real=bench.master_arena.put):
        if len(data) > storing.LARGE:
            assert go_on.wait(PATIENCE)
        return real(data)

    monkeypatch.setattr(arena, "put", put)
    text = b"x" * (storing.LARGE + 1)
    large, small = bench.part(text), bench.part(b"small")
    bench.send(large, small)
    bench.link.cancel(large)
    assert [part.id for part in (await bench.receive()).parts] == [small.id]
    go_on.set()
    (part,) = (await bench.receive()).parts
    assert part.id == large.id
    assert bytes(bench.view.get(part.chunks[0])) == text
    assert await bench.receive() == Cancel([large.id])
    assert bench.link.parts == {large.id: large, small.id: small}


async def test_a_large_part_whose_worker_is_gone_is_not_sent(bench, monkeypatch):
    go_on = threading.Event()

    def put(data):
        assert go_on.wait(PATIENCE)
        raise ValueError("operation forbidden on released memoryview object")

    monkeypatch.setattr(bench.master_arena, "put", put)
    large = bench.part(b"x" * (storing.LARGE + 1))
    bench.send(large)
    bench.link.close()
    go_on.set()
    await bench.until(lambda: not bench.link._sender.cancel(large))
    assert bench.link.take_parts() == [large]


# --- memory of caches -----------------------------------------------------------------------------


async def test_workers_with_a_cache_share_the_memory_of_their_machine():
    benches = [Bench() for _ in range(4)]
    first, second, without, elsewhere = benches
    elsewhere.link.location = WorkerLocation("node 2")
    memory = {bench.link: bench is not without for bench in benches}
    services = {
        link: SimpleNamespace(card=SimpleNamespace(memory="KV cache up to 1 GB" * has_cache))
        for link, has_cache in memory.items()
    }
    try:
        share_memory(services)
        assert await first.receive() == await second.receive() == ShareMemory(2)
        share_memory(services)  # nothing has changed, so nothing is sent
        del services[second.link]
        share_memory(services)
        assert await first.receive() == ShareMemory(1)
        for bench in (without, elsewhere):
            bench.link.set_log_level("INFO")
            assert not isinstance(await bench.receive(), ShareMemory)
    finally:
        for bench in benches:
            bench.close()
