"""The step that a scheduler is filling.  Decides nothing."""

from dataclasses import dataclass, field

from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.step import Row, Step

MAX_SCORED_TOKENS = 64  # of a prompt per step, if all its logits are wanted: they are large


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step, and the sequence of each of its rows."""

    step: Step
    sequences: tuple[Sequence, ...]


@dataclass(slots=True)
class Plan:
    """A step to be filled; `budget` is how many tokens it has room for."""

    budget: int
    rows: list[Row] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)

    def add(self, sequence: Sequence, tokens: list[int]) -> None:
        start = sequence.num_computed
        num_logits = start + len(tokens) - max(start, sequence.wanted_from)
        row = Row(tokens, start, sequence.blocks, max(0, num_logits), sequence.adapter)
        self.rows.append(row)
        self.sequences.append(sequence)
        self.budget -= len(tokens)

    def add_piece(self, sequence: Sequence) -> None:
        """As many of the tokens of `sequence` that are not computed as there is room for."""
        start = sequence.num_computed
        end = min(len(sequence.tokens), start + self.budget)
        if sequence.is_scored:
            end = min(end, max(start, sequence.wanted_from) + MAX_SCORED_TOKENS)
        self.add(sequence, sequence.tokens[start:end])

    def done(self) -> Scheduled:
        return Scheduled(Step(tuple(self.rows), tuple(self.copies)), tuple(self.sequences))
