"""Every message survives the trip, and nothing else gets in."""

import msgspec
import pytest

from mindspore_serving.core.signature import InstanceSignature, ValueSpec
from mindspore_serving.errors import StageFailed
from mindspore_serving.ipc import messages as m
from mindspore_serving.process.channel import encode, message_decoder
from mindspore_serving.process.vocabulary import Exit, Failed, Hello, Leaving

ITEM = m.RequestPart(7, "add", "ms_json", [b"{}", m.Slice(65536, 40000)], 1.5)
REPLY = m.PartReply(7, [b"1", b""], [None, m.Fault(3, "raised")])
GRAPH = InstanceSignature((ValueSpec("x", "float32", (3, None)),), (ValueSpec("y", None, ()),))
METHOD = m.MethodReport("add", ["x"], ["y"], 32, True, False, signature=GRAPH)
MODEL = m.ModelReport(0, [GRAPH, InstanceSignature()])

TO_WORKER = [
    m.Setup(
        "/models",
        "add",
        2,
        "cpu",
        3,
        True,
        b"0123456789abcdef",
        "AES-CBC",
        False,
        {"a.mindir": MODEL},
    ),
    m.Setup("/models", "add", 0, "none", None, False, None, "AES-GCM", True, {}),
    m.Work([ITEM, m.RequestPart(8, "add", "native", [], None)], [65536]),
    m.Work([]),
    m.Cancel([1, 2]),
    m.EndSequences("detect", [3, 4]),
    m.CallReply(REPLY, [0, 1]),
    Exit(),
    m.LogLevel("0"),
    m.ShareMemory(2),
    m.SetAdapters(3, [m.AdapterSource("pirate", "/adapters/pirate", 1)]),
]
TO_MASTER = [
    Hello("0123abcd", "/there/mindspore_serving"),
    m.WorkerReady(2, [METHOD], {"a.mindir": MODEL}),
    Failed("no such file"),
    m.Done(
        [REPLY, m.PartReply(8, [], rejected=m.Fault(2, "bad")), m.PartReply(9, [], is_last=False)]
    ),
    m.Done([], [0, 65536]),
    m.WorkerCall("add", 1, ITEM),
    m.WorkerCall("add", 1, ITEM, [3], False, [m.CallStep("add", 0, "sum", [0, 1], 1)], [2]),
    m.DropCall(2),
    Leaving(),
    m.AdaptersSet(3, {"pirate": m.Fault(2, "no such file")}),
    m.EngineMetrics({"num_running": 3}, {"stop": 2}, {"serving_llm_queue_seconds": (0.5, [1, 2])}),
]


@pytest.mark.parametrize(
    ("kind", "message"),
    [(m.ToWorker, message) for message in TO_WORKER]
    + [(m.ToMaster, message) for message in TO_MASTER],
    ids=lambda value: type(value).__name__ if isinstance(value, m.Message) else "",
)
def test_a_message_comes_back_equal(kind, message):
    (back,) = message_decoder(kind).feed(encode(message))
    assert back == message
    assert type(back) is type(message)


def test_every_message_of_each_direction_is_tried_above():
    assert {type(message) for message in TO_WORKER} == set(m.ToWorker.__args__)
    assert {type(message) for message in TO_MASTER} == set(m.ToMaster.__args__)


@pytest.mark.parametrize(
    "chunk", [b"abc", bytearray(b"abc"), memoryview(b"xabcx")[1:4]], ids=lambda c: type(c).__name__
)
def test_a_chunk_may_be_any_bytes_like_object_and_arrives_as_bytes(chunk):
    sent = m.Work([m.RequestPart(1, "add", "ms_json", [chunk], None)])
    (back,) = message_decoder(m.ToWorker).feed(encode(sent))
    assert back.parts[0].chunks == [b"abc"]
    assert type(back.parts[0].chunks[0]) is bytes


def test_bytes_do_not_alias_the_receive_buffer():
    buffer = bytearray(encode(m.Work([m.RequestPart(1, "add", "ms_json", [b"abc"], None)])))
    (back,) = message_decoder(m.ToWorker).feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert back.parts[0].chunks == [b"abc"]


def test_a_message_of_the_other_direction_is_refused():
    with pytest.raises(msgspec.ValidationError):
        list(message_decoder(m.ToWorker).feed(encode(Leaving())))
    with pytest.raises(msgspec.ValidationError):
        list(message_decoder(m.ToMaster).feed(encode(Exit())))


def test_a_field_of_a_wrong_type_is_refused():
    class Forged(msgspec.Struct, array_like=True, tag=12):
        ids: list[str]

    with pytest.raises(msgspec.ValidationError):
        list(message_decoder(m.ToWorker).feed(encode(Forged(["not a number"]))))


def test_an_error_with_half_a_character_is_sent_with_an_escape():
    """As of a file whose name is no UTF-8."""
    fault = m.to_fault(StageFailed("no file a\udcff"))
    (found,) = message_decoder(m.ToMaster).feed(
        encode(m.Done([m.PartReply(7, [], rejected=fault)]))
    )
    assert found.replies[0].rejected.text == r"no file a\udcff"
