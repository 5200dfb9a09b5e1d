"""Prompts that another worker computes, over two real engines that a test connects.

The messages between them, and workers that die, are in tests/e2e/test_roles.py.
"""

import os
import threading
from contextlib import closing
from dataclasses import replace as dataclass_replace

import msgspec
import pytest

from mindspore_serving.core.llm_messages import (
    Chunk,
    Finished,
    Generate,
    PromptScored,
    decode_events,
    encode_events,
    encode_request,
)
from mindspore_serving.core.llm_messages import decode_request as decode
from mindspore_serving.core.roles import PREFILL_METHOD
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import WorkerUnavailable
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.serving import handoffs
from mindspore_serving.llm.serving.async_engine import AsyncEngine
from mindspore_serving.stores.circuit import Circuit
from tests.llm import chatty, lora_files
from tests.waiting import PATIENCE, eventually

OPTIONS = {"dtype": "f32", "kv_cache_memory": 16 << 20, "num_threads": 1, "handoff_tokens": 64}
PROMPT = [9 + index * 7 % 480 for index in range(300)]
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=8, temperature=0.8, seed=7, ignore_eos=True, n=2)


class Worker:
    """An engine, and what it has said."""

    def __init__(self, directory, options):
        opened = open_model(directory, "openvino", make_config({**OPTIONS, **options}))
        self.engine = AsyncEngine(opened, lambda: None)
        if self.engine._monitor is not None:
            self.engine._monitor.close()  # blocks stay, whatever memory other processes need
        self.engine.adapters.share_keys()

    def ask(self, request, sink=None):
        told = []
        request_id = self.engine.accept(request, sink or (lambda *event: told.append(event)))
        return request_id, told


class Caller:
    """Calls `worker` as the master does, in bytes; `fault` is what happens to the next call."""

    def __init__(self, worker, decoder):
        self.worker, self.decoder = worker, decoder
        self.calls, self.dropped, self.fault = {}, [], ""
        self.replies = []

    def start(self, request, item_id, log_id):
        call_id = -1 - len(self.calls)
        request = decode(PREFILL_METHOD, encode_request(request))
        self.calls[call_id] = request
        if self.fault == "lost":
            self.replies.append((call_id, WorkerUnavailable("it died"), True))
        elif self.fault == "other memory":
            self.run(call_id, msgspec.structs.replace(request, name="blocks-0"))
        elif self.fault != "silent":
            self.run(call_id, request)
        return call_id

    def run(self, call_id, request):
        def sink(events, is_last):
            if isinstance(events, list):
                events = decode_events(encode_events(events))
            self.replies.append((call_id, events, is_last))

        self.worker.engine.accept(request, sink)

    def drop(self, call_id):
        self.dropped.append(call_id)

    def collect(self):
        self.worker.engine.collect()
        self.decoder.engine.collect()
        replies, self.replies = self.replies, []
        for call_id, events, is_last in replies:
            self.decoder.engine.handoffs.on_reply(call_id, events, is_last=is_last)


class Pair:
    """A worker that computes prompts, one that decodes, and one that does both."""

    def __init__(self, directory, **options):
        workers = (Worker(directory, options) for _ in range(3))
        self.prefill, self.decode, self.alone = workers
        self.caller = Caller(self.prefill, self.decode)
        self.decode.engine.hand_off(self.caller)

    def until(self, condition):
        def check():
            self.caller.collect()
            self.alone.engine.collect()
            return condition()

        return eventually(check)

    def answer(self, request, worker=None):
        _, told = (worker or self.decode).ask(request)
        self.until(lambda: told and told[-1][1])
        return [event for events, _ in told for event in events]

    def stats(self):
        return self.decode.engine.stats

    def close(self):
        for worker in (self.prefill, self.decode, self.alone):
            worker.engine.close()


def build(tmp_path_factory):
    """Build a model and two adapters beside it; return its directory."""
    root = tmp_path_factory.mktemp("roles")
    model = chatty.build(root, context=1024)
    for seed, name in enumerate("ab", 1):
        lora_files.write(root / name, lora_files.adapter(model, lora_files.ATTENTION, seed))
    return model


def renewed(pair, monkeypatch):
    """Return a pair without the faults of the last test."""
    monkeypatch.setattr(handoffs, "patience", lambda *_: PATIENCE)
    pair.caller.fault, pair.caller.dropped = "", []
    pair.decode.engine.handoffs._circuit = Circuit()
    return pair


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return build(tmp_path_factory)


def adapted(directory):
    """Return the options of a model with an adapter."""
    return {"adapters": {"a": directory.parent / "a"}, "max_loras": 3}


@pytest.fixture(scope="module")
def opened(directory):
    with closing(Pair(directory, **adapted(directory))) as pair:
        yield pair


@pytest.fixture
def pair(opened, monkeypatch):
    return renewed(opened, monkeypatch)


def prompt(seed):
    """A prompt that begins unlike all others."""
    return [9 + seed, *PROMPT]


def num_memories():
    """How many memories for blocks this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:blocks-")
        except OSError:
            continue
    return count


def texts(events):
    return [(event.index, event.token_ids) for event in events if isinstance(event, Chunk)]


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "sampled"])
def test_answers_are_those_of_a_worker_that_does_both(pair, params):
    request = Generate(prompt=prompt(1 if params is GREEDY else 2), params=params)
    before = len(pair.caller.calls)
    events = pair.answer(request)
    assert texts(events) == texts(pair.answer(request, pair.alone))
    assert len(pair.caller.calls) == before + 1
    assert isinstance(events[-1], Finished)
    assert events[-1].num_cached_tokens == 0  # it was computed, elsewhere
    assert events[-1].num_prompt_tokens == 301
    pair.until(lambda: not num_memories())


def test_a_prompt_in_a_cache_counts_as_cached(pair):
    request = Generate(prompt=prompt(3), params=GREEDY)
    pair.answer(request)
    count = len(pair.caller.calls)
    assert pair.answer(request)[-1].num_cached_tokens == 288
    assert len(pair.caller.calls) == count
    longer = Generate(prompt=[*prompt(3), *PROMPT], params=GREEDY)
    assert pair.answer(longer)[-1].num_cached_tokens == 288
    (*_, call) = pair.caller.calls.values()
    assert (call.num_cached, len(call.prompt)) == (9, 576)  # 601 tokens: 18 full blocks


def test_a_prompt_that_the_other_worker_has_cached_counts_as_cached(pair):
    tokens = prompt(4)
    pair.answer(Generate(prompt=tokens, params=GREEDY), pair.prefill)
    assert pair.answer(Generate(prompt=tokens, params=GREEDY))[-1].num_cached_tokens == 288


def test_short_prompts_and_those_with_logprobs_are_computed_here(pair):
    count = len(pair.caller.calls)
    scored = dataclass_replace(GREEDY, prompt_logprobs=1)
    events = pair.answer(Generate(prompt=prompt(5), params=scored))
    assert sum(len(event.tokens) for event in events if isinstance(event, PromptScored)) == 301
    pair.answer(Generate(prompt=prompt(6)[:60], params=GREEDY))
    assert len(pair.caller.calls) == count


def test_prompts_of_adapters_are_computed_by_workers_with_the_same_adapter(pair):
    request = Generate(prompt=prompt(50), params=GREEDY, adapter="a")
    before, count = pair.stats().num_handoffs, len(pair.caller.calls)
    adapted = pair.answer(request)
    assert texts(adapted) == texts(pair.answer(request, pair.alone))
    assert texts(adapted) != texts(pair.answer(Generate(prompt=prompt(50), params=GREEDY)))
    assert len(pair.caller.calls) == count + 2  # without the adapter nothing was cached
    pair.until(lambda: pair.stats().num_handoffs >= before + 2)


def test_a_prompt_of_an_adapter_that_the_other_lacks_is_computed_here(pair, directory):
    first, second = (str(directory.parent / name) for name in "ab")
    adapters, done = {"a": (first, 0), "b": (second, 1)}, []
    pair.decode.engine.adapters.set(adapters, done.append)
    pair.prefill.engine.adapters.set({**adapters, "b": (first, 1)}, done.append)
    pair.until(lambda: len(done) == 2)
    assert done == [{}, {}]
    failed = pair.stats().num_handoffs_failed
    request = Generate(prompt=prompt(52), params=GREEDY, adapter="b")
    answer = texts(pair.answer(request))
    pair.until(lambda: pair.stats().num_handoffs_failed > failed)
    pair.decode.engine.handoffs._circuit = Circuit()
    other = texts(pair.answer(Generate(prompt=prompt(52), params=GREEDY, adapter="a")))
    assert answer != other
    for worker in (pair.decode, pair.prefill):
        worker.engine.adapters.set({"a": adapters["a"]}, done.append)
    pair.until(lambda: len(done) == 4)


def test_salts_are_those_of_the_request(pair):
    salted = Generate(prompt=prompt(7), params=GREEDY, cache_salt="a")
    pair.answer(salted)
    assert pair.answer(salted)[-1].num_cached_tokens == 288
    other = Generate(prompt=prompt(7), params=GREEDY, cache_salt="b")
    assert pair.answer(other)[-1].num_cached_tokens == 0


@pytest.mark.parametrize("fault", ["lost", "other memory"])
def test_a_prompt_is_computed_here_if_the_other_worker_fails(pair, fault):
    pair.caller.fault = fault
    pair.decode.engine.handoffs._circuit = Circuit(lambda: 0.0)  # no pause ends
    request = Generate(prompt=prompt(8 + len(fault)), params=GREEDY)
    failed = pair.stats().num_handoffs_failed
    assert texts(pair.answer(request)) == texts(pair.answer(request, pair.alone))
    pair.until(lambda: pair.stats().num_handoffs_failed > failed)
    assert pair.caller.dropped == []  # it has answered
    count = len(pair.caller.calls)
    pair.answer(Generate(prompt=prompt(9 + len(fault)), params=GREEDY))
    assert len(pair.caller.calls) == count  # not asked again at once
    assert num_memories() == 0


def test_a_prompt_is_computed_here_if_no_block_arrives(pair, monkeypatch):
    monkeypatch.setattr(handoffs, "patience", lambda *_: 0.05)
    pair.caller.fault = "silent"
    request = Generate(prompt=prompt(30), params=GREEDY)
    assert texts(pair.answer(request)) == texts(pair.answer(request, pair.alone))
    (*_, call_id) = pair.caller.calls
    assert pair.caller.dropped == [call_id]
    assert num_memories() == 0


def test_a_cancelled_request_frees_its_memory_and_is_not_added(pair):
    pair.caller.fault = "silent"
    count = len(pair.caller.calls)
    request_id, told = pair.decode.ask(Generate(prompt=prompt(31), params=GREEDY))
    pair.until(lambda: len(pair.caller.calls) > count)
    assert num_memories() == 1
    pair.decode.engine.cancel(request_id)
    pair.until(lambda: num_memories() == 0)
    (*_, call_id) = pair.caller.calls
    pair.decode.engine.handoffs.on_reply(call_id, [], is_last=True)  # too late
    pair.answer(Generate(prompt=prompt(32)[:60], params=GREEDY))
    assert told == []
    assert pair.decode.engine.num_open == 0
    assert not pair.decode.engine.handoffs._open


def test_memory_of_prompts_under_way_is_bounded(pair):
    pair.caller.fault = "silent"
    count = len(pair.caller.calls)
    num_blocks = pair.decode.engine.card.num_blocks
    most = num_blocks // handoffs.CACHE_SHARE // 9  # prompts of 9 blocks
    asked = [
        pair.decode.ask(Generate(prompt=prompt(40 + index), params=GREEDY))
        for index in range(most + 1)
    ]
    # At least one has no room, and is computed at once.
    pair.until(lambda: any(told and told[-1][1] for _, told in asked))
    assert len(pair.caller.calls) <= count + most
    assert num_memories() <= most
    for request_id, _ in asked:
        pair.decode.engine.cancel(request_id)
    pair.until(lambda: num_memories() == 0)


def test_an_engine_that_closes_leaves_no_timer(directory):
    pair = Pair(directory, **adapted(directory))
    pair.caller.fault = "silent"
    pair.decode.ask(Generate(prompt=prompt(1), params=GREEDY))
    pair.until(lambda: pair.caller.calls)
    pair.until(lambda: pair.decode.engine.handoffs._open)
    pair.close()
    assert not any(
        isinstance(thread, threading.Timer) and thread.is_alive() and not thread.finished.is_set()
        for thread in threading.enumerate()
    )
