"""A `tokenizer.model` of ranks, as tiktoken reads it: on each line a token in base64 and its rank,
which is also its id.  Read as the metadata that GGUF files have of byte-level tokenizers.
"""

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError

MAX_BYTES = 64 * 2**20


def _spelled() -> dict[int, str]:
    """The printable character of each byte: itself, or the next free one from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    found = {byte: chr(byte) for byte in plain}
    return found | {byte: chr(256 + index) for index, byte in enumerate(others)}


SPELLING = _spelled()  # of bytes, in byte-level vocabularies


def is_ranks(path: Path) -> bool:
    """Whether the first line is one of such a file."""
    with path.open("rb") as file:
        return _parsed(file.readline(1000)) is not None


class TokenRanks:
    """One file.  `metadata` has what a GGUF file's `tokenizer.ggml.*` has."""

    def __init__(self, path: Path, rule: str) -> None:
        """Text is cut by `rule` (`tokenizer.ggml.pre`).  Raises StartError naming the file and what
        is wrong.
        """
        self.path = path
        tokens = list(_tokens(path))
        scores = [-rank for rank in range(len(tokens))]
        found = {"model": "gpt2", "pre": rule, "tokens": tokens, "scores": scores}
        self.metadata: dict[str, Any] = {
            f"tokenizer.ggml.{name}": value for name, value in found.items()
        }

    def array(self, key: str) -> list[Any]:
        return list(self.metadata[key])

    texts = array


def _tokens(path: Path) -> Iterator[str]:
    """In order of their ranks.  Raises StartError."""
    if path.stat().st_size > MAX_BYTES:
        raise StartError(f"{path} is over {MAX_BYTES} bytes")
    found: dict[int, bytes] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        parsed = _parsed(line)
        if parsed is None:
            raise StartError(f"{path}: line {number} is no token in base64 with a rank")
        found.setdefault(parsed[1], parsed[0])
    known = set(found.values())
    if sorted(found) != list(range(number)) or len(known) != number:
        raise StartError(f"{path} has {number} lines, expected each rank and each token once")
    if any(bytes([byte]) not in known for byte in range(256)):
        raise StartError(f"{path} has no token for some byte, expected one for each of 256")
    for rank in range(number):
        yield "".join(SPELLING[byte] for byte in found[rank])


def _parsed(line: bytes) -> tuple[bytes, int] | None:
    """(token, rank); None if it is no such line."""
    token, _, rank = line.strip().partition(b" ")
    try:
        bits = b64decode(token, validate=True)
    except ValueError:
        return None
    return (bits, int(rank)) if bits and rank.isdigit() and len(rank) < 10 else None
