"""Which workers have computed the beginning of a prompt, as far as the master has seen.  No I/O.

A prompt is cut into pieces; each has the hash of all that is before its end, so that two prompts
have as many hashes in common as they have pieces from the beginning.  This is an estimate of where
a prompt is cheapest, no more: a worker may have forgotten what it had, a rest shorter than a piece
does not count, nor does what is behind MOST_PIECES.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from mindspore_serving.master.request import WorkerLink

PIECE = 256  # characters; the end of a text may make it longer
TOKEN = 4  # characters that a token id counts as
MOST_PIECES = 128
MOST_ENTRIES = 1 << 16

Texts: TypeAlias = Iterable[str | Sequence[int]]


def hashes(texts: Texts) -> list[int]:
    """One for each piece of what `texts` are together."""
    found: list[int] = []
    last = length = 0
    for text in texts:
        width = 1 if isinstance(text, str) else TOKEN
        for start in range(0, len(text), PIECE // width):
            piece = text[start : start + PIECE // width]
            last = hash((last, piece if isinstance(piece, str) else tuple(piece)))
            length += len(piece) * width
            if length >= PIECE:
                found.append(last)
                length = 0
            if len(found) == MOST_PIECES:
                return found
    return found


class PrefixMap:
    """Remembers by hash which workers had a prompt; the prompts used last, of bounded number."""

    def __init__(self) -> None:
        self._holders: dict[int, tuple[WorkerLink, ...]] = {}  # the last used at the end

    def find(self, hashes: Sequence[int], workers: Iterable[WorkerLink]) -> set[WorkerLink]:
        """Those of `workers` that had the longest beginning; none if that is less than half."""
        found, num_found = set(workers), 0
        for one in hashes:
            still = found.intersection(self._holders.get(one, ()))
            if not still:
                break
            found = still
            num_found += 1
        return found if 2 * num_found >= max(1, len(hashes)) else set()

    def add(self, hashes: Sequence[int], worker: WorkerLink) -> None:
        """`worker` gets a prompt."""
        for one in hashes:
            holders = self._holders.pop(one, ())
            self._holders[one] = holders if worker in holders else (*holders, worker)
        while len(self._holders) > MOST_ENTRIES:
            del self._holders[next(iter(self._holders))]

    def remove(self, worker: WorkerLink) -> None:
        """`worker` is gone, and with it what it had."""
        for one, holders in list(self._holders.items()):
            if worker not in holders:
                continue
            if len(holders) == 1:
                del self._holders[one]
            else:
                self._holders[one] = tuple(other for other in holders if other is not worker)
