"""How the master takes a request body apart without reading its values.

A row per codec: how to cut it, the codec of the pieces, and whether it may travel whole.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from mindspore_serving.wire import ms_json, ms_proto

Chunk: TypeAlias = "bytes | bytearray | memoryview"


class _Row(NamedTuple):
    split: Callable[[Any], Sequence[Chunk]]
    pieces: str
    can_be_whole: bool


_TABLE = {
    "ms_proto": _Row(ms_proto.split, "ms_proto", False),
    "ms_json": _Row(ms_json.split, "ms_json_items", True),
    "llm": _Row(lambda body: [body], "llm", True),
}


def split(codec: str, body: bytes | bytearray) -> tuple[str, Sequence[Chunk]]:
    """The codec of the pieces, and one piece per instance.  Raises InvalidInputs."""
    row = _TABLE[codec]
    return row.pieces, row.split(body)


def whole(codec: str, body: bytes | bytearray) -> tuple[str, Sequence[Chunk]]:
    """As `split`, but in one piece if the codec allows it."""
    return (codec, (body,)) if _TABLE[codec].can_be_whole else split(codec, body)


def cut_again(codec: str, chunks: Sequence[Chunk]) -> tuple[str, Sequence[Chunk]]:
    """Of what `split` or `whole` gave: the codec of the pieces, and one piece per instance."""
    is_whole = codec in _TABLE and _TABLE[codec].can_be_whole
    return split(codec, bytes(chunks[0])) if is_whole else (codec, chunks)
