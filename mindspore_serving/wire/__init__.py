"""Codecs of the protocols as pure functions: bytes to values and back.  No sockets.

A worker gets the codec of a request by its name: `worker_codec("ms_proto").decode(...)`.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from mindspore_serving.core.buffers import BufferList
from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import Instance

Chunk: TypeAlias = "bytes | bytearray | memoryview"


class Codec(NamedTuple):
    """Functions by which a worker decodes a request and encodes one instance of its reply.

    `decode(chunks, method, servable_label)` returns instances with exactly the method's inputs,
    their arrays writable, and raises InvalidInputs.  Arrays can be views of a chunk if the chunk is
    writable. `encode(outputs)` raises StageFailed; large arrays stay views of the outputs.
    """

    decode: Callable[[Sequence[Chunk], Method, str], list[Instance]]
    encode: "Callable[[Instance], bytes | BufferList]"


_PACKAGE = "mindspore_serving.wire."
# Each chunk is an instance, but for "ms_json", where it is a whole body, and v2, where it has any
# number of instances.  The codecs of v2 differ in the form of the reply that the client wants.
_CODECS = {
    "ms_proto": ("ms_proto:decode", "ms_proto:encode"),
    "ms_json": ("ms_json:decode_body", "ms_json:encode"),
    "ms_json_items": ("ms_json:decode_items", "ms_json:encode"),
    "native": ("native:decode", "native:encode"),
    "v2_raw": ("v2.values:decode", "v2.outputs:encode_raw"),
    "v2_json": ("v2.values:decode", "v2.outputs:encode_json"),
    "v2_both": ("v2.values:decode", "v2.outputs:encode"),
}


@cache
def worker_codec(name: str) -> Codec:
    """Return the codec `name`, imported on first use.  Raises KeyError for an unknown name."""
    return Codec(*map(_load, _CODECS[name]))


def _load(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(import_module(_PACKAGE + module), name)
    return function
