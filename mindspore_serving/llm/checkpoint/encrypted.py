"""Decryption of MindSpore's `.ckpt` files with a key in the environment.

Processes of ranks inherit the key, or get it with the command to load. Knows no tensor.
"""

import os
from pathlib import Path

from mindspore_serving import extras
from mindspore_serving.backends.crypto import decrypt_blocks, mode_of
from mindspore_serving.errors import StartError

KEY = "MINDSPORE_SERVING_DEC_KEY"
HEX = "hex:"


def set_key(key: bytes | str) -> None:
    """Set the key for this process and those that it starts; a text is that of the variable."""
    os.environ[KEY] = key if isinstance(key, str) else f"{HEX}{key.hex()}"


def key_text() -> str:
    """Return the key of this process, as the variable has it; "" if there is none."""
    return os.environ.get(KEY, "")


def decrypted(path: Path, content: memoryview) -> memoryview:
    """Return the plain content of an encrypted file.

    AES-GCM and AES-CBC are told apart by the file. Raises StartError: no key, a wrong one, or a
    damaged file.
    """
    text = key_text()
    if not text:
        raise StartError(
            f"{path} is encrypted; set the environment variable {KEY} to its key: 16, 24 or 32 "
            f"characters, or {HEX} with two hexadecimal digits for each byte"
        )
    plain, end = bytearray(len(content)), 0
    try:
        for block in decrypt_blocks(content, _key(text), mode_of(bytes(content[:4]))):
            plain[end : end + len(block)] = block
            end += len(block)
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, f"{path}, which is encrypted,")) from None
    except StartError as error:
        raise StartError(f"{path}: {error}") from None
    return memoryview(plain)[:end].toreadonly()


def _key(text: str) -> bytes:
    digits = text.removeprefix(HEX)
    if digits == text:
        return text.encode()
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise StartError(f"{KEY} begins with {HEX}, expected hexadecimal digits after it") from None
