"""`AsyncEngine` over a real tiny model: refusals, cancelling at every moment, a broken loop."""

import threading
import time

import pytest

from mindspore_serving.core.llm_messages import (
    Chunk,
    Detokenize,
    Finished,
    Generate,
    Refused,
    Started,
    Tokenize,
)
from mindspore_serving.core.reading_messages import Embed, Embedded
from mindspore_serving.core.sampling_params import FinishReason, Generated, SamplingParams
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.stats import FirstStep
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.serving.async_engine import AsyncEngine
from mindspore_serving.llm.serving.generation import GenerationEvents
from mindspore_serving.llm.serving.recording import GenerationRecorder
from tests.llm import chatty
from tests.waiting import PATIENCE

OPTIONS = {"embeddings": True, "dtype": "f32", "kv_cache_memory": 128 << 20}
CONTEXT = 1 << 15  # tokens, more than come before a request is cancelled


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return chatty.build(tmp_path_factory.mktemp("answering"), context=CONTEXT)


class Asking:
    def __init__(self, directory):
        self.woken = threading.Event()
        opened = open_model(directory, "openvino", make_config(OPTIONS))
        self.answering = AsyncEngine(opened, self.woken.set)
        self.said = {}

    def ask(self, ask):
        told = []

        def sink(events, is_last):
            told.append((events, is_last))

        ask_id = self.answering.accept(ask, sink)
        self.said[ask_id] = told
        return ask_id

    def until(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, self.said
            self.woken.wait(0.1)
            self.woken.clear()
            self.answering.collect()

    def whole(self, ask):
        """All events of an ask, or its error."""
        told = self.said[self.ask(ask)]
        self.until(lambda: told and told[-1][1])
        assert [is_last for _, is_last in told[:-1]] == [False] * (len(told) - 1)
        if isinstance(told[-1][0], ServingError):
            return told[-1][0]
        return [event for events, _ in told for event in events]

    @property
    def is_free(self):
        stats = self.answering.stats
        return stats.num_free_blocks == stats.num_blocks and not stats.num_waiting


@pytest.fixture(scope="module")
def asking(directory):
    found = Asking(directory)
    yield found
    found.answering.close()


@pytest.fixture
def breaking(directory):
    """One of its own, for a test that breaks it."""
    found = Asking(directory)
    yield found
    found.answering.close()


def long(**more):
    params = SamplingParams(max_tokens=CONTEXT - 100, ignore_eos=True, **more)
    return Generate(prompt="Hello", params=params, is_stream=True)


def test_a_generation_begins_has_pieces_and_ends(asking):
    ask = Generate(prompt="Hello", params=SamplingParams(max_tokens=3, n=2, ignore_eos=True))
    events = asking.whole(ask)
    assert isinstance(events[0], Started)
    assert sorted(event.index for event in events if isinstance(event, Chunk)) == [0, 1]
    assert events[-1] == Finished(events[0].num_prompt_tokens, 0, 6, events[-1].queue_seconds)
    assert events[-1].queue_seconds >= 0
    assert asking.answering.num_open == 0


def test_the_end_tells_how_long_the_first_step_was_waited_for(asking):
    ask = Generate(prompt="Hello", params=SamplingParams(max_tokens=1))
    before = time.monotonic()
    answer = GenerationEvents("1", ask, asking.answering._outputs, GenerationRecorder())
    asked = time.monotonic()
    assert answer.take("1", FirstStep(asked + 2.5)) == []
    last = Generated(0, (5,), "x", None, FinishReason.LENGTH)
    _, ended = answer.take("1", last)
    assert 2.5 <= ended.queue_seconds <= 2.5 + asked - before


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (Generate(prompt=""), "empty"),
        (Generate(), "input"),
        (Generate(prompt="x", messages=[]), "input"),
        (Generate(prompt=[1] * CONTEXT), "context"),
        (Generate(prompt=[100_000]), "input"),
        (Generate(prompt="x", truncate=0), "input"),
        (Generate(prompt="x", truncate=-3), "input"),
        (Generate(prompt="x" * 2 * CONTEXT), "context"),
        (Tokenize(prompt="x" * 65 * CONTEXT), "context"),
        (Detokenize(token_ids=[-1]), "input"),
        (Embed(prompts=[]), "input"),
        (Embed(prompts=["x", ""]), "empty"),
        (Embed(prompts=["x", [1] * 2 * CONTEXT]), "context"),
    ],
)
def test_unanswerable_requests_are_refused_with_a_reason(asking, ask, reason):
    (event,) = asking.whole(ask)
    assert isinstance(event, Refused)
    assert event.reason == reason
    assert asking.answering.num_open == 0


@pytest.mark.parametrize("ask", [long(), long(n=5), Embed(prompts=[[5] * 100] * 300)])
def test_who_is_cancelled_is_told_nothing_more_and_frees_all(asking, ask):
    asking.whole(Generate(prompt="warm", params=SamplingParams(max_tokens=1)))
    ask_id = asking.ask(ask)
    if isinstance(ask, Generate):
        asking.until(lambda: len(asking.said[ask_id]) > 2)
    asking.answering.cancel(ask_id)
    asking.answering.cancel(ask_id)  # harmless
    count = len(asking.said[ask_id])
    (found,) = asking.whole(Embed(prompts=["behind it"]))
    assert isinstance(found, Embedded)
    asking.until(lambda: asking.is_free)
    assert len(asking.said[ask_id]) == count
    assert asking.answering.num_open == 0


def test_who_is_cancelled_before_a_thread_is_free_costs_nothing(asking, monkeypatch):
    go, prepared = threading.Event(), []

    prepare_now = Processor.prepare

    def prepare(self, request):
        prepared.append(request.prompt)
        go.wait(PATIENCE)
        return prepare_now(self, request)

    asking.whole(Generate(prompt="warm", params=SamplingParams(max_tokens=1)))
    monkeypatch.setattr(Processor, "prepare", prepare)
    asked = [asking.ask(Generate(prompt=str(i))) for i in range(10)]
    for ask_id in asked:
        asking.answering.cancel(ask_id)
    go.set()
    asking.whole(Generate(prompt="last"))
    assert prepared[-1] == "last"
    assert len(prepared) <= 3  # two threads had begun
    assert not any(asking.said[ask_id] for ask_id in asked)


def test_a_loop_that_breaks_is_told_to_whoever_collects(breaking, monkeypatch):
    from mindspore_serving.llm.engine.engine import Engine

    def step(self):
        raise MemoryError("injected")

    monkeypatch.setattr(Engine, "step", step)
    ask_id = breaking.ask(long())
    with pytest.raises(RuntimeError, match="the step loop failed"):
        breaking.until(lambda: False)
    assert not any(is_last for _, is_last in breaking.said[ask_id])


def test_log_lines_of_a_step_have_the_ids_of_its_requests(directory, capsys):
    class Lane:
        def begin(self, stage=0, ids=None): ...
        def end(self): ...

    def fail(step):
        raise RuntimeError("on purpose")

    opened, ended = open_model(directory, "openvino", make_config(OPTIONS)), threading.Event()
    opened.engine.runner.run = fail
    engine = AsyncEngine(opened, ended.set, Lane())
    try:
        engine.accept(Generate(prompt="a"), lambda *_: None, 1, "mine-1")
        said = ""
        while "a step of" not in said:
            assert ended.wait(PATIENCE)
            ended.clear()
            said += capsys.readouterr().err
        assert "mine-1: a step of" in said
    finally:
        engine.close()
