"""Decryption of MindIR files and checkpoints.

A file is a sequence of blocks, all integers little-endian and 4 bytes wide:

    magic | tag (16 bytes, AES-GCM only) | block length | iv length | iv | cipher length | cipher

where block length counts the bytes after it.  Needs the `cryptography` package.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import StartError

MAGIC = {"AES-GCM": 0x7F3A5ED8, "AES-CBC": 0x7F3A5ED9}
_TAG_SIZE = 16
_KEY_SIZES = (16, 24, 32)
_MAX_IV = 128
_GCM_NONCE_SIZE = 12  # the iv field is longer, but the writer uses only this part


@dataclass(frozen=True, slots=True)
class _Block:
    iv: bytes
    cipher: bytes
    tag: bytes


def is_encrypted(head: bytes) -> bool:
    """Return whether a file that starts with `head`, at least 4 bytes, is encrypted."""
    return int.from_bytes(head[:4], "little") in MAGIC.values()


def decrypt(content: bytes, key: bytes, mode: str) -> bytes:
    """Decrypt a file.

    `key` has 16, 24 or 32 bytes, `mode` is "AES-GCM" or "AES-CBC".  AES-CBC has no authentication:
    a wrong key is detected by its padding in 255 of 256 cases, and otherwise by the reader of the
    bytes.

    Raises StartError: bad key size or mode, damaged file, wrong key.
    """
    if mode not in MAGIC:
        raise StartError(f"The dec_mode '{mode}' is not supported, accepted are {', '.join(MAGIC)}")
    file_magic = int.from_bytes(content[:4], "little")
    if file_magic != MAGIC[mode]:
        actual = next((name for name, magic in MAGIC.items() if magic == file_magic), None)
        raise StartError(
            "it is not encrypted, but a dec_key is given"
            if actual is None
            else f"it is encrypted with {actual}, but the dec_mode is {mode}"
        )
    return b"".join(decrypt_blocks(memoryview(content), key, mode))


def mode_of(head: bytes) -> str:
    """Return the mode of an encrypted file that starts with `head`."""
    magic = int.from_bytes(head[:4], "little")
    return next(mode for mode, number in MAGIC.items() if number == magic)


def decrypt_blocks(content: memoryview, key: bytes, mode: str) -> Iterator[bytes]:
    """Iterate over the decrypted blocks of a file; errors are those of `decrypt`."""
    if len(key) not in _KEY_SIZES:
        raise StartError(f"The dec_key has {len(key)} bytes, accepted are 16, 24 or 32")
    open_block = _gcm(key) if mode == "AES-GCM" else _cbc(key)
    return (open_block(block) for block in _blocks(content, mode))


def _blocks(view: memoryview, mode: str) -> Iterator[_Block]:
    at = 0
    while at < len(view):
        magic, at = _number(view, at)
        if magic != MAGIC[mode]:
            raise _damaged(f"no block starts at byte {at - 4}")
        tag, at = _bytes(view, at, _TAG_SIZE) if mode == "AES-GCM" else (b"", at)
        length, at = _number(view, at)
        iv_length, after = _number(view, at)
        if not 0 < iv_length <= _MAX_IV:
            raise _damaged(f"iv of {iv_length} bytes")
        iv, after = _bytes(view, after, iv_length)
        cipher_length, after = _number(view, after)
        cipher, after = _bytes(view, after, cipher_length)
        if after - at != length:
            raise _damaged(f"block of {length} bytes holds {after - at}")
        at = after
        yield _Block(iv, cipher, tag)


def _number(view: memoryview, at: int) -> tuple[int, int]:
    raw, at = _bytes(view, at, 4)
    return int.from_bytes(raw, "little"), at


def _bytes(view: memoryview, at: int, length: int) -> tuple[bytes, int]:
    if length > len(view) - at:
        raise _damaged(f"{length} bytes announced, {len(view) - at} left")
    return bytes(view[at : at + length]), at + length


def _damaged(why: str) -> StartError:
    return StartError(f"the encrypted file is damaged or truncated: {why}")


def _gcm(key: bytes) -> Any:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher = AESGCM(key)

    def open_block(block: _Block) -> bytes:
        try:
            return cipher.decrypt(block.iv[:_GCM_NONCE_SIZE], block.cipher + block.tag, None)
        except (InvalidTag, ValueError) as error:
            raise _wrong_key() from error

    return open_block


def _cbc(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CBC
    from cryptography.hazmat.primitives.padding import PKCS7

    def open_block(block: _Block) -> bytes:
        try:
            decryptor = Cipher(AES(key), CBC(block.iv)).decryptor()
            padded = decryptor.update(block.cipher) + decryptor.finalize()
            padding = PKCS7(128).unpadder()
            return padding.update(padded) + padding.finalize()
        except ValueError as error:
            raise _wrong_key() from error

    return open_block


def _wrong_key() -> StartError:
    return StartError("it cannot be decrypted: the dec_key is wrong or the file is damaged")
