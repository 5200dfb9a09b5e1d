"""LoRA adapters in PyTorch: for the tokens that chose one, a product of low rank is added to that
of the model's matrix, so that one step computes rows of several adapters and of none.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from mindspore_serving.llm.runtimes.adapters import MATRIX, TABLE, Changes, Place
from mindspore_serving.llm.runtimes.layout import Indices, Layout

Tensor: TypeAlias = torch.Tensor
# A weight as it is used.  A tensor is equal to itself alone as a key, whatever is in it.
Key: TypeAlias = tuple[str, Tensor]


@dataclass(frozen=True, slots=True)
class Chosen:
    """An adapter of a step: its tokens, and its places among the wanted ones."""

    adapter: int
    tokens: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Change:
    """`LowRank` on the device."""

    down: Tensor
    up: Tensor


class TorchAdapters:
    """The changes of all adapters, by the weight that they are added to.

    `used` has the weights that a pass has used and that can be changed, once it is not None.
    """

    def __init__(self) -> None:
        self.loaded: set[int] = set()
        self.used: set[Key] | None = None
        self._weights: dict[Place, Tensor] = {}
        self._changes: defaultdict[Key, dict[int, Change]] = defaultdict(dict)

    def settle(self, names: dict[Tensor, str]) -> dict[Place, tuple[int, ...]]:
        """What can be changed, of the weights that were used, which have these `names`; from now on
        none is recorded.
        """
        self._weights = {(use, names[weight]): weight for use, weight in self.used or ()}
        self.used = None
        return {place: tuple(weight.shape) for place, weight in self._weights.items()}

    def load(self, adapter: int, changes: Changes) -> None:
        for place, change in changes.items():
            weight = self._weights[place]
            down, up = (
                torch.from_numpy(np.ascontiguousarray(part)).to(weight.device, weight.dtype)
                for part in (change.down, change.up)
            )
            self._changes[place[0], weight][adapter] = Change(down, up)
        self.loaded.add(adapter)

    def unload(self, adapter: int) -> None:
        self.loaded.discard(adapter)
        for changes in self._changes.values():
            changes.pop(adapter, None)

    def add_product(
        self, chosen: Sequence[Chosen], weight: Tensor, x: Tensor, y: Tensor, *, of_rows: bool
    ) -> None:
        """Add to `y`, which is x @ weight.T, what the chosen adapters change; with `of_rows` `x`
        has the wanted tokens alone.
        """
        for one, change in self._find(MATRIX, weight, chosen):
            tokens = one.rows if of_rows else one.tokens
            y[tokens] += x[tokens] @ change.down.T @ change.up.T

    def add_rows(self, chosen: Sequence[Chosen], table: Tensor, ids: Tensor, y: Tensor) -> None:
        """Add to `y`, which is table[ids]."""
        for one, change in self._find(TABLE, table, chosen):
            y[one.tokens] += change.up[ids[one.tokens]] @ change.down

    def _find(
        self, use: str, weight: Tensor, chosen: Sequence[Chosen]
    ) -> list[tuple[Chosen, Change]]:
        if self.used is not None:
            self.used.add((use, weight))
        if not chosen:
            return []
        changes = self._changes.get((use, weight), {})
        return [(one, changes[one.adapter]) for one in chosen if one.adapter in changes]

    def clear(self) -> None:
        self.loaded.clear()
        self._weights.clear()
        self._changes.clear()


def chosen_adapters(layout: Layout) -> dict[int, tuple[Indices, Indices]]:
    """Which tokens of a step have which adapter, and which of its logits; 0 left out."""
    tokens: defaultdict[int, list[int]] = defaultdict(list)
    for span in layout.spans:
        if span.adapter:
            tokens[span.adapter] += range(span.begin, span.end)
    found = {}
    for adapter, own in tokens.items():
        rows = np.flatnonzero(np.isin(layout.rows, own))
        found[adapter] = (np.array(own), rows)
    return found
