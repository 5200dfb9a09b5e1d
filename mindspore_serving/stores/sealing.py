"""Seals of values: names and checks, so that no value is taken for another or is damaged unseen.

    value:  magic | tag | name | check | content
            7       1     16     16

The check is a hash of everything else, keyed by the secret of the store if there is one.
"""

from hashlib import blake2b

DIGEST_SIZE, MAGIC_SIZE = 16, 7
HEAD_BYTES = MAGIC_SIZE + 1 + 2 * DIGEST_SIZE
PLAIN = b"\0"  # the tag of content as it is


class Seal:
    """Seal of the values of one kind.

    Args:
        magic: kind and version of the values, 7 bytes.
        scope: everything that the values depend on besides what a digest is of.
        secret: of those who may write to the store; with b"", a check only finds damage.
    """

    def __init__(self, magic: bytes, scope: bytes, secret: bytes = b"") -> None:
        self._magic = magic
        self._key = blake2b(secret).digest() if secret else b""
        self._scope = blake2b(scope, digest_size=DIGEST_SIZE, key=self._key).digest()

    def name(self, digest: bytes) -> str:
        """Return the name of the value with the hash `digest`, 32 hexadecimal digits."""
        return blake2b(self._scope + digest, digest_size=DIGEST_SIZE, key=self._key).hexdigest()

    def head(self, name: str, content: bytes | memoryview, tag: bytes = PLAIN) -> bytes:
        """Return what precedes `content` in the value `name`; `tag` is a byte for its reader."""
        head = self._magic + tag + bytes.fromhex(name)
        return head + self._check(head, content)

    def open(self, name: str, value: bytes | bytearray) -> tuple[bytes, memoryview] | None:
        """Return tag and content of a value; None if it is damaged, forged or of another name."""
        view = memoryview(value)
        head, content = view[: HEAD_BYTES - DIGEST_SIZE], view[HEAD_BYTES:]
        tag = bytes(head[MAGIC_SIZE : MAGIC_SIZE + 1])
        if head != self._magic + tag + bytes.fromhex(name):
            return None
        is_right = view[len(head) : HEAD_BYTES] == self._check(head, content)
        return (tag, content) if is_right else None

    def _check(self, head: bytes | memoryview, content: bytes | memoryview) -> bytes:
        check = blake2b(head, digest_size=DIGEST_SIZE, key=self._key)
        check.update(content)
        return check.digest()
