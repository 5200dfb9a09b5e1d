"""Map of prompts' beginnings to the workers that have computed them, by estimate.  No I/O.

A prompt is split into chunks; the hash of each covers everything before its end, so two prompts
share as many hashes as they share chunks from the beginning.  A worker may have evicted blocks
since, a last partial chunk does not count, nor does anything beyond MAX_CHUNKS.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from mindspore_serving.master.request import WorkerLink

CHUNK = 256  # characters; the end of a text can make a chunk longer
TOKEN = 4  # characters that a token id counts as
MAX_CHUNKS = 128  # per prompt
MAX_ENTRIES = 1 << 16

Texts: TypeAlias = Iterable[str | Sequence[int]]


def hashes(texts: Texts) -> list[int]:
    """Return the hash of each chunk of the concatenated `texts`."""
    prefix_hashes: list[int] = []
    last = length = 0
    for text in texts:
        width = 1 if isinstance(text, str) else TOKEN
        for start in range(0, len(text), CHUNK // width):
            chunk = text[start : start + CHUNK // width]
            last = hash((last, chunk if isinstance(chunk, str) else tuple(chunk)))
            length += len(chunk) * width
            if length >= CHUNK:
                prefix_hashes.append(last)
                length = 0
            if len(prefix_hashes) == MAX_CHUNKS:
                return prefix_hashes
    return prefix_hashes


class PrefixMap:
    """Map from hashes to the workers that had the prompt; a bounded LRU cache."""

    def __init__(self) -> None:
        self._holders: dict[int, tuple[WorkerLink, ...]] = {}  # the least recently used first

    def find(self, hashes: Sequence[int], workers: Iterable[WorkerLink]) -> set[WorkerLink]:
        """Return the workers that had the longest prefix.

        None if that is less than half of the prompt.
        """
        holders, num_hits = set(workers), 0
        for prefix_hash in hashes:
            remaining = holders.intersection(self._holders.get(prefix_hash, ()))
            if not remaining:
                break
            holders = remaining
            num_hits += 1
        return holders if 2 * num_hits >= max(1, len(hashes)) else set()

    def add(self, hashes: Sequence[int], worker: WorkerLink) -> None:
        """Record that `worker` gets a prompt."""
        for prefix_hash in hashes:
            holders = self._holders.pop(prefix_hash, ())
            self._holders[prefix_hash] = holders if worker in holders else (*holders, worker)
        while len(self._holders) > MAX_ENTRIES:
            del self._holders[next(iter(self._holders))]

    def remove(self, worker: WorkerLink) -> None:
        """Remove a worker that has ended."""
        for prefix_hash, holders in list(self._holders.items()):
            if worker not in holders:
                continue
            if len(holders) == 1:
                del self._holders[prefix_hash]
            else:
                self._holders[prefix_hash] = tuple(link for link in holders if link is not worker)
