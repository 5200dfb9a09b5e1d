"""Requests that a child process prepares: answered as if the worker had done it."""

import dataclasses
import json
import os
import signal
import threading

import msgspec
import pytest

from mindspore_serving import log
from mindspore_serving.core.llm_messages import (
    Detokenize,
    Detokenized,
    Generate,
    Grammar,
    Tokenize,
    decode_events,
    encode_events,
    to_refused,
)
from mindspore_serving.core.reading_messages import Embed
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.processing import child
from mindspore_serving.llm.processing.output_processor import OutputProcessor
from mindspore_serving.llm.processing.prepared import (
    SMALL,
    PreparedEvent,
    PreparedPrompt,
    PreparedTexts,
    decode_result,
    encode_job,
    encode_result,
)
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.serving import preparation
from mindspore_serving.llm.serving.preparation import Preparation
from tests.e2e.harness import children, eventually
from tests.llm import chatty
from tests.waiting import PATIENCE

OPTIONS = {
    "embeddings": True,
    "dtype": "f32",
    "kv_cache_memory": 16 << 20,
    "preparation_timeout": PATIENCE,
}
LARGE = {"anyOf": [{"const": f"{number} {'x' * 100}"} for number in range(900)]}
TEXT = "the quick fox " * (SMALL // 14 + 1)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    directory = chatty.build(tmp_path_factory.mktemp("preparing"), context=16384)
    found = open_model(directory, "openvino", make_config(OPTIONS))
    yield found
    found.engine.close()


class Preparing:
    def __init__(self, opened):
        self.others = set(children(os.getpid()))
        card = opened.card()
        parts = opened.tokenizer, opened.chat_template, card
        self.processor = Processor(*parts, is_trusted=False)
        self.outputs = OutputProcessor(opened.tokenizer)
        self.failed = {}
        self.preparation = Preparation(opened, card, self.processor, self._fail)
        self._done = threading.Event()

    def _fail(self, request_id, error):
        self.failed[request_id] = error
        self._done.set()

    def read(self, request):
        """What is given to the one that started `request`, or its error."""
        self._done.clear()
        self.failed.clear()
        taken = []

        def take(read):
            taken.append(read)
            self._done.set()

        self.preparation.start("1", request, take)
        assert self._done.wait(2 * PATIENCE)
        return self.failed.get("1") or taken[0]


@pytest.fixture(scope="module")
def preparing(opened):
    found = Preparing(opened)
    yield found
    found.preparation.close()


@pytest.mark.parametrize(
    "request_",
    [
        Generate(prompt=TEXT),
        Generate(messages=[{"role": "user", "content": TEXT}]),
        Generate(prompt=TEXT, params=SamplingParams(bad_words=["fox", "x"], logit_bias={5: 1.5})),
        Generate(prompt=TEXT, truncate=100),
        Generate(prompt="a", grammar=Grammar("regex", "a+b")),
        Generate(prompt="a", grammar=Grammar("json_schema", json.dumps(LARGE))),
    ],
)
def test_a_child_prepares_a_request_as_the_worker_does(preparing, request_):
    read = preparing.read(request_)
    assert isinstance(read, PreparedPrompt)
    assert encode_result(read) == encode_result(preparing.processor.read(request_))
    prepared = preparing.processor.complete(request_, read)
    assert (prepared.options["grammar"] is None) == (request_.grammar is None)


def test_log_lines_of_a_child_have_the_id_of_the_request(opened):
    seen = []

    class Broken:
        def tokenize(self, request, outputs):
            seen.append(log.request_id.get())
            raise InvalidInputs("no")

    job = encode_job(Tokenize(prompt="a"), "the-id")
    with pytest.raises(InvalidInputs, match="no"):
        decode_result(child._answer(Broken(), OutputProcessor(opened.tokenizer), job))
    assert seen == ["the-id"]


def test_small_requests_with_known_grammars_need_no_child(preparing):
    grammar = Grammar("regex", "known+")
    assert isinstance(preparing.read(Generate(prompt="a", grammar=grammar)), PreparedPrompt)
    preparing.processor.grammar(grammar)
    for request in (
        Generate(prompt="a", grammar=grammar),
        Embed(prompts=["a"]),
        Tokenize(prompt="a"),
    ):
        assert preparing.read(request) is None


def test_texts_to_embed_and_events_come_from_a_child_too(preparing):
    read = preparing.read(Embed(prompts=[TEXT, [5, 6]]))
    assert isinstance(read, PreparedTexts)
    assert read.ids == [preparing.processor.encode(TEXT), [5, 6]]
    read = preparing.read(Tokenize(prompt=TEXT))
    assert isinstance(read, PreparedEvent)
    own = preparing.processor.tokenize(Tokenize(prompt=TEXT), preparing.outputs)
    assert decode_events(encode_events([read.event])) == [own]
    read = preparing.read(Detokenize(token_ids=[10] * (SMALL + 1)))
    (event,) = decode_events(encode_events([read.event]))
    assert event == Detokenized(preparing.processor.detokenize(Detokenize(token_ids=[10] * 8193)))


@pytest.mark.parametrize(
    "request_",
    [
        Generate(prompt="x" * 2_000_000),
        Generate(messages=[{"role": "", "content": TEXT}]),
        Generate(prompt="a", grammar=Grammar("regex", "(")),
        Generate(prompt="a" + TEXT, adapter="none", grammar=Grammar("json_schema", "{")),
    ],
)
def test_a_child_refuses_with_the_words_of_the_worker(preparing, request_):
    error = preparing.read(request_)
    assert isinstance(error, InvalidInputs)
    with pytest.raises(InvalidInputs) as caught:
        preparing.processor.prepare(msgspec.structs.replace(request_, adapter=""))
    assert to_refused(error) == to_refused(caught.value)


def test_a_dying_fork_server_costs_at_most_its_own_requests(preparing):
    (server,) = set(children(os.getpid())) - preparing.others
    os.kill(server, signal.SIGKILL)

    def is_replaced():  # children that have not ended yet may answer before
        is_well = isinstance(preparing.read(Generate(prompt=TEXT)), PreparedPrompt)
        return is_well and server not in children(os.getpid())

    eventually(is_replaced)
    assert set(children(os.getpid())) - preparing.others


def test_nothing_is_left_after_the_end(opened):
    before = set(children(os.getpid()))
    preparing = Preparing(opened)
    eventually(lambda: set(children(os.getpid())) - before)
    preparing.preparation.close()
    assert set(children(os.getpid())) == before


@pytest.mark.parametrize(("seconds", "memory"), [(600.0, "auto"), (0.0, "low")])
def test_child_processes_start_with_the_first_large_request(opened, monkeypatch, seconds, memory):
    """They take no time from the first answer, and with low memory none before they are needed."""
    monkeypatch.setattr(preparation, "WARM_AFTER", seconds)
    config = dataclasses.replace(opened.config, memory=memory)
    preparing = Preparing(dataclasses.replace(opened, config=config))
    assert preparing.read(Generate(prompt="a")) is None
    assert preparing.preparation._pool is None
    assert isinstance(preparing.read(Generate(prompt=TEXT)), PreparedPrompt)
    assert preparing.preparation._pool is not None
    preparing.preparation.close()


def test_child_processes_start_soon_after_the_model(opened, monkeypatch):
    monkeypatch.setattr(preparation, "WARM_AFTER", 0.0)
    preparing = Preparing(opened)
    eventually(lambda: preparing.preparation._pool)
    assert isinstance(preparing.read(Generate(prompt=TEXT)), PreparedPrompt)
    preparing.preparation.close()
