"""The spelling of bytes in vocabularies: byte-level ones spell every byte as a character, others
have tokens for the bytes that they have no text for.  Knows no tokenizer.
"""

import re

from mindspore_serving.llm.checkpoint.ranks import SPELLING

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


_BYTE_OF = {char: byte for byte, char in SPELLING.items()}


def byte_level_bytes(token: str) -> bytes:
    """A byte-level token's bytes; an added token, with any other character, stands for itself."""
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()


def fallback_byte(token: str) -> bytes | None:
    """The byte of a byte-fallback token; None if it is not one."""
    match = _BYTE_TOKEN.fullmatch(token) if token.startswith("<0x") else None
    return bytes([int(match[1], 16)]) if match else None
