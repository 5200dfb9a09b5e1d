"""How the master takes a request body apart without reading its values.

A row per codec: how to cut it, the codec of the pieces, how it travels whole, if it may, and
whether cutting takes so little time that it is done.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from mindspore_serving.core.pieces import Buffer, Pieces
from mindspore_serving.wire import ms_json, ms_proto
from mindspore_serving.wire.tensor import MOST_CUT
from mindspore_serving.wire.v2 import tensors

__all__ = ["MOST_CUT", "Chunk", "cut_again", "pack", "split", "takes_view", "unpack", "whole"]

Chunk: TypeAlias = "Buffer | Pieces"


class _Row(NamedTuple):
    split: Callable[[Any], Sequence[Chunk]]
    pieces: str
    whole: Callable[[Any], Sequence[Chunk]] | None
    can_be_cut: Callable[[Any], bool] = lambda _: True


def _as_it_is(body: Any) -> Sequence[Chunk]:
    return (body,)


_OF_TENSORS = ("v2_raw", "v2_json", "v2_both")
_TABLE = {
    "ms_proto": _Row(ms_proto.split, "ms_proto", None),
    "ms_json": _Row(ms_json.split, "ms_json_items", _as_it_is, ms_json.can_be_cut),
    "llm": _Row(_as_it_is, "llm", _as_it_is),
    **{name: _Row(tensors.split, name, tensors.whole) for name in _OF_TENSORS},
}


def split(codec: str, body: Any) -> tuple[str, Sequence[Chunk]]:
    """The codec of the pieces, and one piece per instance, or one for all where finding instances
    takes too long.  Raises InvalidInputs.
    """
    row = _TABLE[codec]
    if row.whole is not None and not row.can_be_cut(body):
        return codec, row.whole(body)
    return row.pieces, row.split(body)


def whole(codec: str, body: Any) -> tuple[str, Sequence[Chunk]]:
    """As `split`, but in one piece if the codec allows it."""
    whole = _TABLE[codec].whole
    if whole is _as_it_is:
        return codec, (body,)
    return split(codec, body) if whole is None else (codec, whole(body))


def cut_again(codec: str, chunks: Sequence[Buffer]) -> tuple[str, Sequence[Any]]:
    """Of what a worker got of `split` or `whole`: the codec of the pieces, and one piece per
    instance; none if they cannot be told apart.
    """
    row = _TABLE.get(codec)
    if row is None or row.whole is None:
        return codec, chunks
    return split(codec, bytes(chunks[0])) if row.whole is _as_it_is else (codec, ())


def pack(codec: str, body: Any) -> Sequence[Buffer]:
    """A whole body in pieces of bytes, for another process."""
    return tensors.pack(body) if codec in _OF_TENSORS else (body,)


def takes_view(codec: str) -> bool:
    """Whether `unpack` and `split` take a view of bytes, and give parts of it."""
    return codec == "ms_proto" or codec in _OF_TENSORS


def unpack(codec: str, packed: Sequence[Buffer]) -> Any:
    """The body that `pack` gave; views only where `takes_view`.  Raises InvalidInputs."""
    return tensors.unpack(packed) if codec in _OF_TENSORS else packed[0]
