"""Texts that clients keep as they are and send back: reasoning, summaries, and their signatures.

They are encoded, not encrypted, so that any server of this software reads them, also later.
"""

import hashlib
from base64 import b64decode, b64encode

_TEXT = "ms1."  # prefix of a text in base64
_SIGNATURE = "mss1."


def encode_text(text: str) -> str:
    """Return `text` as a client gets it."""
    return _TEXT + b64encode(text.encode("utf-8", "replace")).decode()


def decode_text(content: str) -> str | None:
    """Return the text in `content`, None if another server made it."""
    if not content.startswith(_TEXT):
        return None
    try:
        return b64decode(content.removeprefix(_TEXT).encode(), validate=True).decode()
    except ValueError:
        return None


def sign(text: str) -> str:
    """Return the signature of `text`.

    It shows that a server of this software wrote the text and that nobody changed it since by
    mistake; it proves neither.
    """
    digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    return _SIGNATURE + b64encode(digest).decode()


def is_signed(text: str, signature: str | None) -> bool:
    """Return whether `signature` is that of `text`."""
    return signature == sign(text)
