"""Which shapes static graphs are compiled for, and how a step's sequences are put into them.

Decided from the options alone.  Knows no MindSpore.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.layout import Layout, Span
from mindspore_serving.llm.runtimes.mindir.cache import GraphCall

NARROWEST = 16  # new tokens of the smallest graph for prompts; a call is hardly faster with fewer


@dataclass(frozen=True, slots=True)
class Buckets:
    """`batches`: numbers of new tokens per sequence -> numbers of sequences; both rise."""

    batches: Mapping[int, tuple[int, ...]]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(sequences, new tokens of each) of every graph, the largest first."""
        return [
            (batch, width)
            for width in sorted(self.batches, reverse=True)
            for batch in reversed(self.batches[width])
        ]

    def calls(self, layout: Layout) -> Iterator[GraphCall]:
        """The calls that compute `layout`.  Raises ServingError for a row wider than any graph."""
        by_width: defaultdict[int, list[Span]] = defaultdict(list)
        for span in layout.spans:
            by_width[self._width(span.end - span.begin)].append(span)
        for width, spans in sorted(by_width.items()):
            batches = self.batches[width]
            for first in range(0, len(spans), batches[-1]):
                part = tuple(spans[first : first + batches[-1]])
                batch = next(batch for batch in batches if batch >= len(part))
                yield GraphCall(part, width, batch - len(part))

    def _width(self, count: int) -> int:
        for width in self.batches:
            if count <= width:
                return width
        raise ServingError(
            f"a row has {count} new tokens, but the graphs take {max(self.batches)} at most; "
            "raise max_num_batched_tokens"
        )


def buckets(config: EngineConfig, max_model_len: int) -> Buckets:
    """Powers of two.  For sequences that decode, and with guesses those that verify them, every
    number of sequences up to max_num_seqs; for pieces of prompts one, up to max_num_batched_tokens
    or what a sequence can be."""
    longest = min(config.max_num_batched_tokens, max_model_len)
    batches: dict[int, tuple[int, ...]] = dict.fromkeys(_powers(NARROWEST, longest), (1,))
    decoding = tuple(_powers(1, config.max_num_seqs))
    batches |= {1: decoding, _powers(1, 1 + config.num_speculative_tokens)[-1]: decoding}
    return Buckets(dict(sorted(batches.items())))


def _powers(first: int, enough: int) -> list[int]:
    """`first`, twice that and so on, until `enough`."""
    powers = [first]
    while powers[-1] < enough:
        powers.append(powers[-1] * 2)
    return powers
