"""Map of prompts' beginnings to the holders that have computed them, by estimate.  No I/O.

A holder is a worker, or an upstream.

A prompt is split into chunks; the hash of each covers everything before its end, so two prompts
share as many hashes as they share chunks from the beginning.  A holder may have evicted blocks
since, a last partial chunk does not count, nor does anything beyond MAX_CHUNKS.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

from mindspore_serving.core.llm_messages import Generate

CHUNK = 256  # characters; the end of a text can make a chunk longer
TOKEN = 4  # characters that a token id counts as
MAX_CHUNKS = 128  # per prompt
MAX_ENTRIES = 1 << 16

Texts: TypeAlias = Iterable[str | Sequence[int]]
Holder = TypeVar("Holder")


def prompt_texts(request: Generate) -> Iterator[str | Sequence[int]]:
    """Iterate over what two requests must share to have a prompt prefix in common.

    No entry is empty: readers stop after a number of characters, which empty texts would never
    reach.
    """
    yield f"{request.adapter} {request.cache_salt} {len(request.tools or ())}"
    if request.prompt is not None:
        yield request.prompt or " "
    for message in request.messages or ():
        role, content = message.get("role"), message.get("content")
        yield _text(role)
        for part in content if isinstance(content, list) else (content,):
            yield _text(part.get("text") if isinstance(part, dict) else part)


def _text(value: object) -> str:
    return value if isinstance(value, str) and value else " "


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


class PrefixMap(Generic[Holder]):
    """Map from hashes to the holders that had the prompt; a bounded LRU cache."""

    def __init__(self) -> None:
        self._holders: dict[int, tuple[Holder, ...]] = {}  # the least recently used first

    def find(self, hashes: Sequence[int], among: Iterable[Holder]) -> set[Holder]:
        """Return those of `among` that had the longest prefix.

        Return the empty set if that is less than half of the prompt.
        """
        holders, num_hits = set(among), 0
        for prefix_hash in hashes:
            remaining = holders.intersection(self._holders.get(prefix_hash, ()))
            if not remaining:
                break
            holders = remaining
            num_hits += 1
        return holders if 2 * num_hits >= max(1, len(hashes)) else set()

    def add(self, hashes: Sequence[int], holder: Holder) -> None:
        """Record that `holder` gets a prompt."""
        for prefix_hash in hashes:
            holders = self._holders.pop(prefix_hash, ())
            self._holders[prefix_hash] = holders if holder in holders else (*holders, holder)
        while len(self._holders) > MAX_ENTRIES:
            del self._holders[next(iter(self._holders))]

    def remove(self, holder: Holder) -> None:
        """Remove a holder that has ended."""
        for prefix_hash, holders in list(self._holders.items()):
            if holder not in holders:
                continue
            if len(holders) == 1:
                del self._holders[prefix_hash]
            else:
                self._holders[prefix_hash] = tuple(item for item in holders if item != holder)
