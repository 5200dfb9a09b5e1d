"""Protocols as pure functions: bytes to values and back.  No sockets.

A worker finds the codec of a request by its name: `worker_codec("ms_proto").decode(...)`.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from mindspore_serving.core.graph import Method
from mindspore_serving.core.pieces import Pieces
from mindspore_serving.core.value import Instance

Chunk: TypeAlias = "bytes | bytearray | memoryview"


class Codec(NamedTuple):
    """How a worker reads the chunks of a request and writes one instance of its reply.

    `decode(chunks, method, servable_label)` returns instances with exactly the method's inputs,
    their arrays writable, and raises InvalidInputs.  Arrays may be views of a chunk, if that is
    writable.  `encode(outputs)` raises StageFailed; what is large is in views of the outputs.
    """

    decode: Callable[[Sequence[Chunk], Method, str], list[Instance]]
    encode: "Callable[[Instance], bytes | Pieces]"


_PACKAGE = "mindspore_serving.wire."
# Each chunk is one instance, but that of "ms_json", which is a whole body, and those of v2, which
# are any number.  Codecs of v2 differ in what the client wants back.
_CODECS = {
    "ms_proto": ("ms_proto:decode", "ms_proto:encode"),
    "ms_json": ("ms_json:decode_whole", "ms_json:encode"),
    "ms_json_items": ("ms_json:decode_items", "ms_json:encode"),
    "native": ("native:decode", "native:encode"),
    "v2_raw": ("v2.values:decode", "v2.outputs:encode_raw"),
    "v2_json": ("v2.values:decode", "v2.outputs:encode_json"),
    "v2_both": ("v2.values:decode", "v2.outputs:encode"),
}


@cache
def worker_codec(name: str) -> Codec:
    """The codec called `name`, imported on first use.  Raises KeyError for an unknown one."""
    return Codec(*map(_load, _CODECS[name]))


def _load(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(_PACKAGE + module), name)
    return found
