"""The worker's language model for front ends: requests in, encoded events out, one end each."""

import threading

import pytest

from mindspore_serving.core.llm_messages import (
    Finished,
    Generate,
    Refused,
    Started,
    decode_events,
    encode_request,
)
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import Code, InvalidInputs
from mindspore_serving.ipc.arena import NoArena
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.serving.async_engine import AsyncEngine
from mindspore_serving.worker.language import LanguageService, LanguageStage
from tests.llm import chatty
from tests.waiting import PATIENCE

CONTEXT = 1 << 15  # tokens, more than come before a request is cancelled


class Hosted:
    def __init__(self, directory):
        config = make_config({"dtype": "f32", "kv_cache_memory": 64 << 20, "embeddings": True})
        self.woken = threading.Event()
        engine = AsyncEngine(open_model(directory, "openvino", config), self.woken.set)
        self.service = LanguageService(engine, LanguageStage(engine, SamplingParams()))
        self.replies = []

    def request(self, item_id, prompt, count):
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        request = Generate(prompt=prompt, params=params, is_stream=True)
        self.service.accept(item_id, "@generate", encode_request(request))

    def until(self, condition):
        while not condition():
            assert self.woken.wait(PATIENCE), self.replies
            self.woken.clear()
            self.collect()

    def collect(self):
        self.replies += self.service.collect(NoArena())

    def of(self, item_id):
        return [reply for reply in self.replies if reply.id == item_id]


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    found = Hosted(chatty.build(tmp_path_factory.mktemp("host"), context=CONTEXT))
    yield found
    found.service.close()


@pytest.fixture(autouse=True)
def nothing_sent(hosted):
    hosted.replies.clear()


def test_each_part_gets_its_own_events_and_a_single_end(hosted):
    hosted.request(1, "Hello", 3)
    hosted.request(2, "Why", 4)
    hosted.until(lambda: not hosted.service.has_work)
    for item_id, count in ((1, 3), (2, 4)):
        replies = hosted.of(item_id)
        assert [reply.is_last for reply in replies] == [False] * (len(replies) - 1) + [True]
        events = [event for reply in replies for event in decode_events(reply.instances[0])]
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Finished)
        assert events[-1].num_generated_tokens == count


def test_a_refusal_is_an_event_and_the_last(hosted):
    hosted.request(3, "", 1)
    hosted.until(lambda: hosted.replies)
    (reply,) = hosted.of(3)
    assert reply.is_last
    assert isinstance(decode_events(reply.instances[0])[0], Refused)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", encode_request(Generate())[:-1]])
def test_a_body_that_is_no_request_is_refused(hosted, body):
    with pytest.raises(InvalidInputs, match="cannot be decoded"):
        hosted.service.accept(4, "@embed", body)
    assert not hosted.service.has_work


def test_a_cancelled_item_ends_once_and_its_blocks_are_free(hosted):
    hosted.request(5, "Hello", CONTEXT - 100)
    hosted.until(lambda: len(hosted.of(5)) > 2)
    hosted.replies.clear()
    for _ in range(2):
        hosted.service.cancel(5)
    hosted.service.cancel(77)  # unknown
    hosted.collect()
    (reply,) = hosted.replies
    assert reply.is_last
    assert reply.rejected.code == Code.DEADLINE_EXCEEDED

    def is_free():
        numbers = hosted.service.stats()
        return numbers["num_running"] == 0 and numbers["num_free_blocks"] == numbers["num_blocks"]

    hosted.until(is_free)
    assert len(hosted.of(5)) == 1
    assert not hosted.service.has_work


class TooLargeNumbers:
    """An engine whose answers begin with a number that no message holds."""

    num_open = 0
    unready = decision = ""

    def __init__(self):
        self.cancelled = []
        self._sinks = {}

    def accept(self, request, sink, item_id=0, log_id="", timeline=None):
        self._sinks[str(item_id)] = sink
        return str(item_id)

    def collect(self):
        for number, sink in self._sinks.items():
            sink([Started(2**70 if number == "1" else 7, 0)], False)
            sink([Finished(1, 0, 1)], True)
        self._sinks.clear()

    def cancel(self, request_id):
        self.cancelled.append(request_id)


def test_an_answer_that_no_message_holds_fails_alone():
    engine = TooLargeNumbers()
    service = LanguageService(engine, LanguageStage(engine, SamplingParams()))
    for item_id in (1, 2):
        service.accept(item_id, "@generate", encode_request(Generate(prompt="a")))
    bad, *good = service.collect(NoArena())
    assert (bad.id, bad.rejected.code) == (1, Code.FAILED)
    assert "cannot be encoded" in bad.rejected.text
    assert [(one.id, one.is_last) for one in good] == [(2, False), (2, True)]
    assert not service.has_work
