"""Cache blocks of a runner: the users of each, and the prefixes that they hold.

                  allocate                    free, if registered
        empty ----------------> in use ----------------------------> cached
        | ^                     |   ^  ^                             | |  |
        | '---------------------'   |  '----------- share -----------' |  |
        |  free, if not registered  '-------- allocate: evicted -------'  |
        '--------------------> unwritten <--------------------------------'
                shrink                             shrink: evicted

A block whose tokens are all computed may be registered under the chained hash of everything up to
its end, so that a later prompt with the same prefix shares it.  A free block that is registered
keeps its contents until it is needed: empty blocks go first, then unwritten ones, which take memory
when they are written, up to `max_written` blocks, then the cached block that has been free longest.

Integers and hashes only: the contents belong to the runner.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

_DIGEST_SIZE = 16  # bytes of a cryptographic hash: no prompt can be made to match another's blocks


_HASHED = 1 << 62  # in place of an adapter's number


def hash_root(
    salt: str, adapter: int, uses_long_rope: bool = False, *, adapter_digest: bytes = b""
) -> bytes:
    """Return the start of a chain of hashes; sequences share blocks only if it is equal.

    `adapter_digest` is a hash of the adapter's contents; b"" if its number tells enough.
    """
    number = _HASHED if adapter_digest else adapter
    start = (number | uses_long_rope << 63).to_bytes(8, "little") + adapter_digest
    start += salt.encode("utf-8", "surrogatepass")
    return blake2b(start, digest_size=_DIGEST_SIZE).digest()


def hash_block(previous: bytes, tokens: Sequence[int], images: bytes = b"") -> bytes:
    """Return the hash of a full block of `tokens` behind the block with the hash `previous`.

    `images` identifies the image vectors that replace embeddings of some of the tokens.
    """
    content = previous + array("i", tokens).tobytes() + images
    return blake2b(content, digest_size=_DIGEST_SIZE).digest()


class BlockPool:
    """Allocator of the blocks 0 .. num_blocks-1.

    `on_evict` is called with a cached block and its hash before the block is used for something
    else.  `max_written` is how many blocks may take memory as long as cached ones can be evicted
    instead.
    """

    __slots__ = (
        "_block_of",
        "_cached",
        "_empty",
        "_hash_of",
        "_unwritten",
        "max_written",
        "num_blocks",
        "on_evict",
        "users",
    )

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = self.max_written = num_blocks
        self.users = [0] * num_blocks  # number of sequences that use each block
        self._empty: list[int] = []  # free and not registered, a stack
        self._unwritten = list(range(num_blocks - 1, -1, -1))  # such blocks without memory, a stack
        self._cached: OrderedDict[int, None] = OrderedDict()  # free and registered, oldest first
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self.on_evict: Callable[[int, bytes], None] | None = None

    @property
    def num_free(self) -> int:
        """Number of blocks without a user: unwritten, empty or cached."""
        return len(self._unwritten) + len(self._empty) + len(self._cached)

    @property
    def num_written(self) -> int:
        """Number of blocks that take memory."""
        return self.num_blocks - len(self._unwritten)

    @property
    def num_cached(self) -> int:
        """Number of blocks that a prompt could share, free or used."""
        return len(self._block_of)

    def allocate(self) -> int:
        """Return a block for one user; its contents are lost.  `num_free` must not be 0."""
        if self._empty:
            block = self._empty.pop()
        elif self._unwritten and (self.num_written < self.max_written or not self._cached):
            block = self._unwritten.pop()
        else:
            block = self._evict()
        self.users[block] = 1
        return block

    def shrink(self, limit: int) -> list[int]:
        """Return up to `limit` free blocks whose memory can be released: those over `max_written`.

        Empty blocks go first, then the cached blocks that have been free longest.
        """
        count = min(limit, self.num_written - self.max_written)
        blocks: list[int] = []
        while len(blocks) < count and (self._empty or self._cached):
            blocks.append(self._empty.pop() if self._empty else self._evict())
        self._unwritten += blocks
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a user to each of `blocks`."""
        users = self.users
        for block in blocks:
            if users[block] == 0:
                del self._cached[block]
            users[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Remove a user from each of a sequence's `blocks`.

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
        """Register `block` under the hash of its contents, unless another block has that hash."""
        if digest not in self._block_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """Return the blocks that hold the longest prefix of `digests`, without adding users."""
        blocks = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def hashes(self) -> list[bytes]:
        """Return the hashes of all registered blocks: those in use first, then those freed last."""
        used = [digest for digest, block in self._block_of.items() if self.users[block]]
        free = (self._hash_of[block] for block in reversed(self._cached))
        return used + [digest for digest in free if digest is not None]

    def is_registered(self, block: int) -> bool:
        """Return whether later prompts may find `block`, which then must not be written."""
        return self._hash_of[block] is not None

    def drop(self, digest: bytes) -> None:
        """Unregister the block with the hash `digest`, unless it has users."""
        block = self._block_of.get(digest)
        if block is not None and not self.users[block]:
            del self._cached[block]
            self._unregister(block)
            self._empty.append(block)

    def num_unused(self, blocks: Iterable[int]) -> int:
        """Return how many of `blocks` are free, so that sharing them takes from `num_free`."""
        users = self.users
        return sum(users[block] == 0 for block in blocks)

    def _evict(self) -> int:
        """Unregister the cached block that has been free longest, and return it."""
        block, _ = self._cached.popitem(last=False)
        digest = self._hash_of[block]
        if self.on_evict is not None and digest is not None:
            self.on_evict(block, digest)
        self._unregister(block)
        return block

    def _unregister(self, block: int) -> None:
        digest = self._hash_of[block]
        if digest is not None:
            del self._block_of[digest]
            self._hash_of[block] = None
