"""The worker's language model for front ends: asks in, encoded events out, one end each."""

import threading
import time

import pytest

from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.core.llm_messages import (
    Finished,
    Generate,
    Refused,
    Started,
    decode_events,
    encode_request,
)
from mindspore_serving.errors import Code, InvalidInputs
from mindspore_serving.execution.language import LanguageHost
from mindspore_serving.llm.loader import make_config, open_model
from mindspore_serving.llm.serving.async_engine import Answering
from tests.llm import chatty


class Hosted:
    def __init__(self, directory):
        config = make_config({"dtype": "f32", "kv_cache_memory": 2 << 20})
        self.woken = threading.Event()
        answering = Answering(open_model(directory, "openvino", config), self.woken.set)
        self.host = LanguageHost(answering, SamplingParams())

    def ask(self, item_id, prompt, count):
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        ask = Generate(prompt=prompt, params=params, is_stream=True)
        self.host.accept(item_id, "@generate", encode_request(ask))

    def until(self, condition):
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end, self.host.sent
            self.woken.wait(0.1)
            self.woken.clear()
            self.host.collect()

    def of(self, item_id):
        return [sent for sent in self.host.sent if sent.item_id == item_id]


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    found = Hosted(chatty.build(tmp_path_factory.mktemp("host")))
    yield found
    found.host.close()


@pytest.fixture(autouse=True)
def nothing_sent(hosted):
    hosted.host.sent.clear()


def test_each_item_gets_its_own_events_and_one_end(hosted):
    hosted.ask(1, "Hello", 3)
    hosted.ask(2, "Why", 4)
    hosted.until(lambda: not hosted.host.has_work)
    for item_id, count in ((1, 3), (2, 4)):
        sent = hosted.of(item_id)
        assert [one.is_last for one in sent] == [False] * (len(sent) - 1) + [True]
        events = [event for one in sent for event in decode_events(one.events)]
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Finished)
        assert events[-1].num_generated_tokens == count


def test_a_refusal_is_an_event_and_the_last(hosted):
    hosted.ask(3, "", 1)
    hosted.until(lambda: hosted.host.sent)
    (sent,) = hosted.of(3)
    assert sent.is_last
    assert isinstance(decode_events(sent.events)[0], Refused)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", encode_request(Generate())[:-1]])
def test_a_body_that_is_no_ask_is_told_so(hosted, body):
    with pytest.raises(InvalidInputs, match="cannot be read"):
        hosted.host.accept(4, "@embed", body)
    assert not hosted.host.has_work


def test_a_cancelled_item_ends_once_and_its_blocks_are_free(hosted):
    hosted.ask(5, "Hello", 400)
    hosted.until(lambda: len(hosted.of(5)) > 2)
    hosted.host.sent.clear()
    for _ in range(2):
        hosted.host.cancel(5)
    hosted.host.cancel(77)  # never heard of
    (sent,) = hosted.host.sent
    assert sent.is_last
    assert sent.error is not None
    assert sent.error.code == Code.DEADLINE_EXCEEDED

    def is_free():
        numbers = hosted.host.numbers()
        return numbers["num_running"] == 0 and numbers["num_free_blocks"] == numbers["num_blocks"]

    hosted.until(is_free)
    assert len(hosted.of(5)) == 1
    assert not hosted.host.has_work
