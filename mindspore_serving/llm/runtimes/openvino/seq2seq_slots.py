"""Rows of tables for the sequences of a model with an encoder and a decoder.

A sequence has a row in the tables of answers, in a beam search one for each answer, and reads a row
in those of prompts, which other answers to the prompt read as well.  Knows no graph.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mindspore_serving.llm.runtimes.openvino.row_tables import GRAIN, Array, RowTables


@dataclass(slots=True)
class Slot:
    """A sequence: its rows of the tables, and how many cells of them are used.

    The answers of a beam search have a row each, and `source` has the keys and values of the
    prompt.
    """

    blocks: Sequence[int]
    rows: list[int]
    source: int
    prompt: list[int] = field(default_factory=list)
    num_encoded: int = 0  # tokens of the prompt, once their cross keys and values are there
    num_decoded: int = 0


class SequenceTables:
    """Owner of the keys and values of all sequences: those of `answers`, and those of `prompts`.

    `grain` is the number of cells by which rows of prompts grow.
    """

    def __init__(
        self, kind: str, heads: int, width: int, num_layers: int, grain: int = GRAIN
    ) -> None:
        self.answers = RowTables(kind, heads, width, num_layers)
        self.prompts = RowTables(kind, heads, width, num_layers, grain)
        self._by_block: dict[int, Slot] = {}  # by the first block

    def find(self, blocks: Sequence[int], *, is_new: bool) -> Slot:
        """Return the slot of the sequence with `blocks`, which may be new."""
        if is_new or blocks[0] not in self._by_block:
            self.drop(blocks)
            source = _free(slot.source for slot in self._by_block.values())
            self._by_block[blocks[0]] = Slot(tuple(blocks), [self._free_row()], source)
        return self._by_block[blocks[0]]

    def drop(self, blocks: Sequence[int]) -> None:
        """Drop the slots of sequences that had some of `blocks` before."""
        reused = set(blocks)
        for block, slot in list(self._by_block.items()):
            if not reused.isdisjoint(slot.blocks):
                del self._by_block[block]

    def _free_row(self) -> int:
        return _free(row for slot in self._by_block.values() for row in slot.rows)

    def copy(self, source: int, target: int) -> None:
        """Let a sequence continue another one; both read the keys and values of the prompt."""
        self.drop([target])
        origin = self._by_block[source]
        copied = Slot([target], [self._free_row()], origin.source)
        copied.prompt = origin.prompt[:]
        self._by_block[target] = copied
        self.fit()
        copied.num_encoded, copied.num_decoded = origin.num_encoded, origin.num_decoded
        self.answers.copy(origin.rows[0], copied.rows[0], origin.num_decoded)

    def follow(self, slot: Slot, parents: Sequence[int]) -> None:
        """Let the rows of a slot continue those that were its rows of the numbers `parents`.

        The first that continues a row keeps it; the others get copies, in rows that none continues.
        """
        before, copies = slot.rows, []
        spare = [row for number, row in enumerate(before) if number not in set(parents)]
        after: list[int] = []
        for index, parent in enumerate(parents):
            row = before[parent]
            if parent in parents[:index]:
                slot.rows = [*before, *after]
                row = spare.pop() if spare else self._free_row()
                copies.append((before[parent], row))
            after.append(row)
        slot.rows = after
        self.fit()
        for origin, row in copies:
            self.answers.copy(origin, row, slot.num_decoded)

    def _lengths(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the cells in use, by row of the tables of answers and of those of prompts."""
        slots = self._by_block.values()
        decoded = {row: slot.num_decoded for slot in slots for row in slot.rows if slot.num_decoded}
        encoded = {slot.source: slot.num_encoded for slot in slots if slot.num_encoded}
        return decoded, encoded

    def fit(self, num_decoded: int = 0, num_encoded: int = 0) -> None:
        """Make room for all slots, and for rows of so many cells."""
        slots, (decoded, encoded) = self._by_block.values(), self._lengths()
        num_rows = 1 + max((row for slot in slots for row in slot.rows), default=0)
        self.answers.fit(num_rows, decoded, num_decoded)
        num_rows = 1 + max((slot.source for slot in slots), default=0)
        self.prompts.fit(num_rows, encoded, num_encoded)

    def arrange(self, slots: Sequence[Slot]) -> None:
        """Move the rows of `slots` to the first of the tables."""
        decoded, encoded = self._lengths()
        rows = [row for slot in slots for row in slot.rows]
        moved = self.answers.bring_first(rows, decoded)
        sources = list(dict.fromkeys(slot.source for slot in slots))
        moved_sources = self.prompts.bring_first(sources, encoded)
        for slot in self._by_block.values():
            slot.rows = [moved.get(row, row) for row in slot.rows]
            slot.source = moved_sources.get(slot.source, slot.source)


def _free(used: Iterable[int]) -> int:
    """Return the first number that is not used."""
    numbers = set(used)
    return next(number for number in range(len(numbers) + 1) if number not in numbers)


def sharing_of(sources: Sequence[int], num_sources: int, count: int) -> dict[str, Array]:
    """Return the inputs `sharing` and `shared` of a graph.

    They are for rows that read `sources`, with `count` tokens each.
    """
    tokens: list[list[int]] = [[] for _ in range(num_sources)]
    for number, source in enumerate(sources):
        tokens[source] += range(number * count, (number + 1) * count)
    sharing = np.zeros((num_sources, max(map(len, tokens))), np.int32)
    shared = np.zeros(len(sources) * count, np.int32)
    for source, numbers in enumerate(tokens):
        sharing[source, : len(numbers)] = numbers
        shared[numbers] = source * sharing.shape[1] + np.arange(len(numbers))
    return {"sharing": sharing, "shared": shared}
