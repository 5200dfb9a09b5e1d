"""Splitting of a request body in the master, without decoding its values.

The table has a row per codec: how to split a body, the codec of the chunks, how to send the body
unsplit, if that is possible, and whether splitting is cheap enough.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from mindspore_serving.core.buffers import Buffer, BufferList, StoredBytes
from mindspore_serving.wire import ms_json, ms_proto
from mindspore_serving.wire.tensor import MAX_SPLIT_BYTES
from mindspore_serving.wire.v2 import tensors

__all__ = [
    "MAX_SPLIT_BYTES",
    "Chunk",
    "accepts_views",
    "pack",
    "resplit",
    "split",
    "unchanging",
    "unpack",
    "wrap",
]

Chunk: TypeAlias = "Buffer | BufferList"


class _Row(NamedTuple):
    split: Callable[[Any], Sequence[Chunk]]
    chunk_codec: str
    wrap: Callable[[Any], Sequence[Chunk]] | None
    is_cheap: Callable[[Any], bool] = lambda _: True


def _unchanged(body: Any) -> Sequence[Chunk]:
    return (body,)


_V2_CODECS = ("v2_raw", "v2_json", "v2_both")
_TABLE = {
    "ms_proto": _Row(ms_proto.split, "ms_proto", None),
    "ms_json": _Row(ms_json.split, "ms_json_items", _unchanged, ms_json.is_cheap_to_split),
    "llm": _Row(_unchanged, "llm", _unchanged),
    **{name: _Row(tensors.split, name, tensors.whole) for name in _V2_CODECS},
}


def split(codec: str, body: Any) -> tuple[str, Sequence[Chunk]]:
    """Split a body into one chunk per instance; return the codec of the chunks, and the chunks.

    There is one chunk for all instances if finding them takes too long.  Raises InvalidInputs.
    """
    row = _TABLE[codec]
    if row.wrap is not None and not row.is_cheap(body):
        return codec, row.wrap(body)
    return row.chunk_codec, row.split(body)


def wrap(codec: str, body: Any) -> tuple[str, Sequence[Chunk]]:
    """Return the body in a single chunk if the codec permits it, else split it like `split`."""
    wrap = _TABLE[codec].wrap
    if wrap is _unchanged:
        return codec, (body,)
    return split(codec, body) if wrap is None else (codec, wrap(body))


def resplit(codec: str, chunks: Sequence[Buffer]) -> tuple[str, Sequence[Any]]:
    """Split the chunks that a worker received into one chunk per instance, with their codec.

    Returns no chunks if the codec cannot tell instances apart.
    """
    row = _TABLE.get(codec)
    if row is None or row.wrap is None:
        return codec, chunks
    return split(codec, bytes(chunks[0])) if row.wrap is _unchanged else (codec, ())


def pack(codec: str, body: Any) -> Sequence[Buffer]:
    """Return the body as buffers, for another process."""
    return tensors.pack(body) if codec in _V2_CODECS else (body,)


def unchanging(codec: str, body: Any) -> Sequence[Buffer] | None:
    """Return the body as buffers; None if some are in memory that a client can change meanwhile."""
    if codec in _V2_CODECS and any(isinstance(each.data, StoredBytes) for each in body.inputs):
        return None
    return pack(codec, body)


def accepts_views(codec: str) -> bool:
    """Return whether `unpack` and `split` accept a view and return parts of it."""
    return codec == "ms_proto" or codec in _V2_CODECS


def unpack(codec: str, packed: Sequence[Buffer]) -> Any:
    """Return the body that was packed; views only if `accepts_views`.  Raises InvalidInputs."""
    return tensors.unpack(packed) if codec in _V2_CODECS else packed[0]
