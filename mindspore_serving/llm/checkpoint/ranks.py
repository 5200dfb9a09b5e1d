"""A file of ranks in tiktoken's format: on each line a base64 token and its rank.

The rank is the token's id, too. The file is read into the metadata that GGUF files have of
byte-level tokenizers.
"""

from base64 import b64decode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError

MAX_BYTES = 64 * 2**20


def _spelled() -> dict[int, str]:
    """Return the printable character of each byte: itself, or the next free one from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in plain]
    spelling = {byte: chr(byte) for byte in plain}
    return spelling | {byte: chr(256 + index) for index, byte in enumerate(unprintable)}


SPELLING = _spelled()  # of bytes, in byte-level vocabularies


def is_ranks(path: Path) -> bool:
    """Return whether the file's first line is a token with a rank."""
    with path.open("rb") as file:
        return _parsed(file.readline(1000)) is not None


class TokenRanks:
    """Tokens in the order of their ranks.  `metadata` holds the keys of `tokenizer.ggml.*`.

    Args:
        path: file that has them.
        rule: by which text is pre-tokenized (`tokenizer.ggml.pre`).
        tokens: spelled as in byte-level vocabularies; None reads them.

    Raises StartError naming the file and what is wrong.
    """

    def __init__(self, path: Path, rule: str, tokens: Sequence[str] | None = None) -> None:
        self.path = path
        tokens = list(_tokens(path) if tokens is None else tokens)
        scores = [-rank for rank in range(len(tokens))]
        fields = {"model": "gpt2", "pre": rule, "tokens": tokens, "scores": scores}
        self.metadata: dict[str, Any] = {
            f"tokenizer.ggml.{name}": value for name, value in fields.items()
        }

    def array(self, key: str) -> list[Any]:
        return list(self.metadata[key])

    texts = array


def _tokens(path: Path) -> Iterator[str]:
    """Iterate over the tokens in the order of their ranks.  Raises StartError."""
    if path.stat().st_size > MAX_BYTES:
        raise StartError(f"{path} has over {MAX_BYTES} bytes")
    by_rank: dict[int, bytes] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        parsed = _parsed(line)
        if parsed is None:
            raise StartError(f"{path}: line {number} is no base64 token with a rank")
        by_rank.setdefault(parsed[1], parsed[0])
    known = set(by_rank.values())
    if sorted(by_rank) != list(range(number)) or len(known) != number:
        raise StartError(f"{path} has {number} lines, expected each rank and each token once")
    if any(bytes([byte]) not in known for byte in range(256)):
        raise StartError(f"{path} lacks the token of a byte, expected a token for each byte")
    for rank in range(number):
        yield "".join(SPELLING[byte] for byte in by_rank[rank])


def _parsed(line: bytes) -> tuple[bytes, int] | None:
    """Return (token, rank) of a line, None if it has another form."""
    token, _, rank = line.strip().partition(b" ")
    try:
        bits = b64decode(token, validate=True)
    except ValueError:
        return None
    return (bits, int(rank)) if bits and rank.isdigit() and len(rank) < 10 else None
