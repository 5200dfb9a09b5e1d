"""Messages between the processes, mutated: a decoder refuses them as its caller expects."""

from random import Random

import msgspec
import numpy as np
import pytest

from mindspore_serving.core.signature import InstanceSignature, ValueSpec
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.ipc import messages as ipc
from mindspore_serving.process.channel import encode, message_decoder
from mindspore_serving.process.vocabulary import Exit, Failed, Leaving
from mindspore_serving.wire import native
from tests.fuzz import byte_edits

ITEM = ipc.RequestPart(1, "double", "native", [b"abc", ipc.Slice(8, 16)], 1.5, is_stream=True)
REPLY = ipc.PartReply(1, [b"abc"], [None, ipc.Fault(2, "no")], ipc.Fault(1, "all"), is_last=False)
SIGNATURE = InstanceSignature((ValueSpec("x", "float32", (3, None)),), (ValueSpec("y"),))
METHOD = ipc.MethodReport("double", ["x"], ["y"], 4, True, False, True, SIGNATURE)
TO_MASTER = (
    ipc.WorkerReady(1, [METHOD], {"model": ipc.ModelReport(2, [SIGNATURE])}),
    Failed("no"),
    ipc.Done([REPLY], [1, 2]),
    ipc.WorkerCall("toy", 1, ITEM),
    Leaving(),
    ipc.EngineMetrics({"num_running": 1}, {"stop": 2}, {"name": (0.5, [1, 2])}),
)
TO_WORKER = (
    ipc.Setup("/d", "toy", 1, "cpu", 0, True, b"key", "AES-GCM", False, {}, {"a": [1, {"b": 2}]}),
    ipc.Work([ITEM], [3]),
    ipc.Cancel([1]),
    ipc.CallReply(REPLY),
    Exit(),
    ipc.LogLevel("0"),
)
EXPECTED = (msgspec.DecodeError, TooLarge, ValueError, KeyError)  # of the link to a worker
COUNT = 5000


@pytest.mark.parametrize(
    ("kind", "examples"), [(ipc.ToMaster, TO_MASTER), (ipc.ToWorker, TO_WORKER)]
)
def test_mutated_messages_are_decoded_or_refused(
    kind: object, examples: tuple[msgspec.Struct, ...]
) -> None:
    random = Random(1)
    refused = 0
    for _ in range(COUNT):
        data = encode(random.choice(examples))
        kept = data[:4] if random.random() < 0.7 else b""  # the length
        try:
            list(message_decoder(kind).feed(kept + byte_edits.edit(data[len(kept) :], random)))
        except EXPECTED:
            refused += 1
    assert 100 < refused < COUNT


def test_mutated_values_are_decoded_or_refused() -> None:
    random = Random(1)
    values = (np.arange(6, dtype="int32").reshape(2, 3), "text", b"bytes", np.float16(1))
    data = native.encode_values([np.asarray(v) if isinstance(v, np.generic) else v for v in values])
    refused = 0
    for _ in range(COUNT):
        try:
            native.decode_values(bytearray(byte_edits.edit(data, random)))
        except InvalidInputs:
            refused += 1
    assert 100 < refused < COUNT
