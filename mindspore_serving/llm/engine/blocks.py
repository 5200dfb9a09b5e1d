"""The cache blocks of a runner: how many use each, and which hold the beginning of a known text.

A block is free, or used by one or more sequences.  A block whose tokens are all computed may be
*cached*: registered under the chained hash of everything up to its end, so that a later prompt that
begins alike shares it.  A free block that is cached keeps its contents until it is needed: blocks
that hold nothing go first, then the cached one that has been free longest.

Integers and hashes only: the contents belong to the runner.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

_DIGEST_SIZE = 16  # of a cryptographic hash: no prompt can be made to match another's blocks


def hash_root(salt: str, adapter: int, is_long: bool = False) -> bytes:
    """Where the chain of hashes begins.  Sequences share blocks if all of these are equal."""
    start = (adapter | is_long << 63).to_bytes(8, "little") + salt.encode("utf-8", "surrogatepass")
    return blake2b(start, digest_size=_DIGEST_SIZE).digest()


def hash_block(previous: bytes, tokens: Sequence[int], images: bytes = b"") -> bytes:
    """The hash of a full block of `tokens` that follows what `previous` is the hash of; `images`
    says what is in place of some of them.
    """
    content = previous + array("i", tokens).tobytes() + images
    return blake2b(content, digest_size=_DIGEST_SIZE).digest()


class BlockPool:
    """Hands out blocks 0 .. num_blocks-1 and takes them back.

    `on_leave` is called with a cached block, and what it is registered under, when it is about to
    be used for something else.
    """

    __slots__ = ("_block_of", "_cached", "_empty", "_hash_of", "num_blocks", "on_leave", "users")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.users = [0] * num_blocks  # sequences that use each block
        self._empty = list(range(num_blocks - 1, -1, -1))  # free, hold nothing; last goes first
        self._cached: OrderedDict[int, None] = OrderedDict()  # free and cached, oldest first
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self.on_leave: Callable[[int, bytes], None] | None = None

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks that a prompt could share, free or used."""
        return len(self._block_of)

    def allocate(self) -> int:
        """A block for one user; its contents are lost.  `num_free` must not be 0."""
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            digest = self._hash_of[block]
            if self.on_leave is not None and digest is not None:
                self.on_leave(block, digest)
            self._forget(block)
        self.users[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """One more user for each of `blocks`."""
        users = self.users
        for block in blocks:
            if users[block] == 0:
                del self._cached[block]
            users[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """One user less for each of a sequence's `blocks`.

        The last block is reused first: the end of a text is useless without its beginning.
        """
        users = self.users
        for block in reversed(blocks):
            users[block] -= 1
            if users[block]:
                continue
            if self._hash_of[block] is None:
                self._empty.append(block)
            else:
                self._cached[block] = None

    def register(self, block: int, digest: bytes) -> None:
        """`block` holds what `digest` is the hash of; a second such block changes nothing."""
        if digest not in self._block_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks that hold the longest beginning of what `digests` describe.  Takes none."""
        found = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def hashes(self) -> list[bytes]:
        """What blocks are registered under: first those in use, then those freed last."""
        used = [digest for digest, block in self._block_of.items() if self.users[block]]
        free = (self._hash_of[block] for block in reversed(self._cached))
        return used + [digest for digest in free if digest is not None]

    def is_registered(self, block: int) -> bool:
        """Whether later prompts may find `block`, which then must not be written any more."""
        return self._hash_of[block] is not None

    def drop(self, digest: bytes) -> None:
        """Forget what `digest` is the hash of, unless it is used."""
        block = self._block_of.get(digest)
        if block is not None and not self.users[block]:
            del self._cached[block]
            self._forget(block)
            self._empty.append(block)

    def num_unused(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free, so that sharing them takes from `num_free`."""
        users = self.users
        return sum(users[block] == 0 for block in blocks)

    def _forget(self, block: int) -> None:
        digest = self._hash_of[block]
        if digest is not None:
            del self._block_of[digest]
            self._hash_of[block] = None
