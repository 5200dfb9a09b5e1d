"""A worker with a language model and stages of the user's: a slow stage holds up no stream."""

import sys

import pytest

from mindspore_serving.core.llm_messages import (
    CODEC,
    Chunk,
    Generate,
    decode_events,
    encode_request,
)
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.ipc.messages import Cancel, Done, EngineMetrics, RequestPart, Work
from mindspore_serving.process.vocabulary import Exit, Ready
from mindspore_serving.wire import native
from tests.llm import chatty
from tests.waiting import PATIENCE
from tests.worker.test_worker import Master

BODY = """
import threading

is_waiting, may_go = threading.Event(), threading.Event()

def wait(x):
    is_waiting.set()
    assert may_go.wait(600)
    return x

def shout(text):
    return text.upper()

llm = register.declare_llm(
    {model!r}, dtype="f32", kv_cache_dtype="f32", kv_cache_memory=2 << 20,
    params=SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True),
)

@register.register_method(output_names=["y"])
def waiting(x):
    return register.add_stage(wait, x, outputs_count=1)

@register.register_method(output_names=["text"])
def answer(prompt):
    return register.add_stage(llm, prompt, outputs_count=1)

@register.register_method(output_names=["text"])
def shouted(prompt):
    text = register.add_stage(llm, prompt, outputs_count=1)
    return register.add_stage(shout, text, outputs_count=1)
"""
STREAM = 7


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return chatty.build(tmp_path_factory.mktemp("threads"))


class ReplyingMaster(Master):
    """Keeps replies by item; the servable's events are ours, since the worker is a thread here."""

    def __init__(self):
        super().__init__(shared=False)
        self.by_item = {}

    @staticmethod
    def events():
        """The globals of the servable, which this process has imported."""
        return vars(sys.modules["tiny.servable_config"])

    def listen(self):
        message = self.receive()
        if isinstance(message, Done):
            for reply in message.replies:
                self.by_item.setdefault(reply.id, []).append(reply)
        else:
            assert isinstance(message, EngineMetrics)

    def until(self, condition):
        while not condition():
            self.listen()

    def is_answered(self, item_id):
        return any(reply.is_last for reply in self.by_item.get(item_id, ()))

    def generate(self, item_id, count):
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        request = Generate(prompt="Hello", params=params, is_stream=True)
        self.say(
            Work([RequestPart(item_id, "@generate", CODEC, [encode_request(request)], None, True)])
        )

    def num_pieces(self, item_id):
        events = [
            event
            for reply in self.by_item.get(item_id, ())
            for event in decode_events(reply.instances[0])
        ]
        return sum(isinstance(event, Chunk) for event in events)

    def call(self, item_id, method, value, *, is_stream=False):
        body = native.encode_values((value,))
        self.say(Work([RequestPart(item_id, method, "native", [body], None, is_stream)]))


@pytest.fixture
def master(write, model):
    head = "from mindspore_serving.llm import SamplingParams\n"
    setup = write(head + BODY.replace("{model!r}", repr(str(model))))
    master = ReplyingMaster()
    master.say(setup)
    assert isinstance(master.receive(), EngineMetrics)  # the master knows at once if it is unready
    assert isinstance(master.receive(), Ready)
    yield master
    master.events()["may_go"].set()
    master.say(Exit())
    master._thread.join()
    assert master.status == 0
    master.stream.close()


def test_a_waiting_stage_delays_neither_open_nor_new_streams(master):
    master.generate(STREAM, 400)
    master.until(lambda: master.num_pieces(STREAM) > 2)
    master.call(1, "waiting", "x")
    assert master.events()["is_waiting"].wait(PATIENCE)
    before = master.num_pieces(STREAM)
    master.until(lambda: master.num_pieces(STREAM) > before + 20)
    master.generate(STREAM + 1, 3)
    master.call(2, "answer", "Hello")
    master.until(lambda: master.is_answered(STREAM + 1) and master.is_answered(2))
    assert not master.is_answered(1)
    master.events()["may_go"].set()
    master.until(lambda: master.is_answered(1))
    master.say(Cancel([STREAM]))
    master.until(lambda: master.is_answered(STREAM))


def test_a_stage_behind_the_model_gets_its_texts(master):
    master.call(1, "answer", "Hello")
    master.call(2, "shouted", "Hello")
    master.until(lambda: master.is_answered(1) and master.is_answered(2))
    (plain,) = native.decode_values(master.by_item[1][0].instances[0])
    (shouted,) = native.decode_values(master.by_item[2][0].instances[0])
    assert plain
    assert shouted == plain.upper()


def test_a_cancelled_part_is_answered_once_its_waiting_stage_ends(master):
    master.call(1, "waiting", "x")
    master.call(2, "shouted", "Hello")
    assert master.events()["is_waiting"].wait(PATIENCE)
    master.say(Cancel([1, 2]))
    master.events()["may_go"].set()
    master.until(lambda: master.is_answered(1) and master.is_answered(2))
    assert master.by_item[2][0].faults[0] is not None
