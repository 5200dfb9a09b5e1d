"""Protocols as pure functions: bytes to values and back.  No sockets.

A worker finds the codec of a request by its name: `worker_codec("ms_proto").decode(...)`.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import NamedTuple, TypeAlias

from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import Instance

Chunk: TypeAlias = "bytes | bytearray | memoryview"


class Codec(NamedTuple):
    """How a worker reads the chunks of a request and writes one instance of its reply.

    `decode(chunks, method, servable_label)` returns instances with exactly the method's inputs,
    their arrays writable, and raises InvalidInputs.  `encode(outputs)` raises StageFailed.
    """

    decode: Callable[[Sequence[Chunk], Method, str], list[Instance]]
    encode: Callable[[Instance], bytes]


# Each chunk is one instance, but that of "ms_json", which is a whole body.
_CODECS = {
    "ms_proto": ("mindspore_serving.wire.ms_proto", "decode"),
    "ms_json": ("mindspore_serving.wire.ms_json", "decode_whole"),
    "ms_json_items": ("mindspore_serving.wire.ms_json", "decode_items"),
    "native": ("mindspore_serving.wire.native", "decode"),
}


@cache
def worker_codec(name: str) -> Codec:
    """The codec called `name`, imported on first use.  Raises KeyError for an unknown one."""
    module_name, decode = _CODECS[name]
    module = import_module(module_name)
    return Codec(getattr(module, decode), module.encode)
