"""The spelling of bytes in vocabularies: byte-level ones spell every byte as a character, others
have tokens for the bytes that they have no text for.  Knows no tokenizer.
"""

import re

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _spell_byte_level() -> dict[str, int]:
    """The printable character of each byte: itself, or the next free one from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain}
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _spell_byte_level()


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
