import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.backends import crypto
from mindspore_serving.errors import StartError

KEY = b"0123456789abcdef"


def little(number):
    return number.to_bytes(4, "little")


def gcm_block(plain, *, iv=b"i" * 16):
    """A block as its writer makes it, from the cipher itself."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    sealed = AESGCM(KEY).encrypt(iv[:12], plain, None)
    cipher, tag = sealed[:-16], sealed[-16:]
    body = little(len(iv)) + iv + little(len(cipher)) + cipher
    return little(0x7F3A5ED8) + tag + little(len(body)) + body


def test_blocks_are_joined_in_order():
    content = gcm_block(b"one ") + gcm_block(b"two")
    assert crypto.decrypt(content, KEY, "AES-GCM") == b"one two"


def test_changed_byte_is_detected():
    content = bytearray(gcm_block(b"something"))
    content[-1] ^= 1
    with pytest.raises(StartError, match="the dec_key is wrong or the file is damaged"):
        crypto.decrypt(bytes(content), KEY, "AES-GCM")


@pytest.mark.parametrize("at", [20, 24, 44])
def test_a_length_beyond_the_file_is_refused_without_allocating(at):
    content = bytearray(gcm_block(b"something"))
    content[at : at + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(StartError, match="damaged or truncated"):
        crypto.decrypt(bytes(content), KEY, "AES-GCM")


@given(st.integers(4, 56))
def test_file_truncated_anywhere_is_an_error(length):
    content = gcm_block(b"something")
    assert len(content) == 57
    with pytest.raises(StartError, match="damaged or truncated"):
        crypto.decrypt(content[:length], KEY, "AES-GCM")


@given(st.binary(), st.sampled_from(["AES-GCM", "AES-CBC"]))
def test_any_bytes_are_an_error_and_nothing_worse(tail, mode):
    content = little(crypto.MAGIC[mode]) + tail
    if tail:
        with pytest.raises(StartError):
            crypto.decrypt(content, KEY, mode)
