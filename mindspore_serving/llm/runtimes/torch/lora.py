"""LoRA adapters in PyTorch.

For the tokens of an adapter, a low-rank product is added to that of the model's matrix, so that one
step computes rows of several adapters and of none.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from mindspore_serving.llm.runtimes.adapters import MATRIX, TABLE, Changes, WeightUse
from mindspore_serving.llm.runtimes.layout import Indices, Layout

Tensor: TypeAlias = torch.Tensor
# A weight and its use.  As a key, a tensor is compared by identity, not by its values.
Key: TypeAlias = tuple[str, Tensor]


@dataclass(frozen=True, slots=True)
class AdapterTokens:
    """Tokens of a step that use an adapter, and their rows among the requested logits."""

    adapter: int
    tokens: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Change:
    """A `LowRank` on the device."""

    down: Tensor
    up: Tensor


class TorchAdapters:
    """Changes of all adapters, by the weight that they are added to.

    While `used` is not None, it records the weights that a pass uses and an adapter can change.
    """

    def __init__(self) -> None:
        self.loaded: set[int] = set()
        self.used: set[Key] | None = None
        self._weights: dict[WeightUse, Tensor] = {}
        self._changes: defaultdict[Key, dict[int, Change]] = defaultdict(dict)

    def settle(self, names: dict[Tensor, str]) -> dict[WeightUse, tuple[int, ...]]:
        """Stop recording, and return the shapes of the recorded weights.

        `names` are the names of the tensors in the checkpoint.
        """
        self._weights = {(use, names[weight]): weight for use, weight in self.used or ()}
        self.used = None
        return {weight_use: tuple(weight.shape) for weight_use, weight in self._weights.items()}

    def load(self, adapter: int, changes: Changes) -> None:
        for use, change in changes.items():
            weight = self._weights[use]
            down, up = (
                torch.from_numpy(np.ascontiguousarray(part)).to(weight.device, weight.dtype)
                for part in (change.down, change.up)
            )
            self._changes[use[0], weight][adapter] = Change(down, up)
        self.loaded.add(adapter)

    def unload(self, adapter: int) -> None:
        self.loaded.discard(adapter)
        for changes in self._changes.values():
            changes.pop(adapter, None)

    def add_product(
        self,
        chosen: Sequence[AdapterTokens],
        weight: Tensor,
        x: Tensor,
        y: Tensor,
        *,
        of_rows: bool,
    ) -> None:
        """Add the adapters' changes to `y`, which is x @ weight.T.

        With `of_rows`, `x` has only the tokens whose logits are requested.
        """
        for selected, change in self._find(MATRIX, weight, chosen):
            tokens = selected.rows if of_rows else selected.tokens
            y[tokens] += x[tokens] @ change.down.T @ change.up.T

    def add_rows(
        self, chosen: Sequence[AdapterTokens], table: Tensor, ids: Tensor, y: Tensor
    ) -> None:
        """Add the adapters' changes to `y`, which is table[ids]."""
        for selected, change in self._find(TABLE, table, chosen):
            y[selected.tokens] += change.up[ids[selected.tokens]] @ change.down

    def _find(
        self, use: str, weight: Tensor, chosen: Sequence[AdapterTokens]
    ) -> list[tuple[AdapterTokens, Change]]:
        if self.used is not None:
            self.used.add((use, weight))
        if not chosen:
            return []
        changes = self._changes.get((use, weight), {})
        return [
            (selected, changes[selected.adapter])
            for selected in chosen
            if selected.adapter in changes
        ]

    def clear(self) -> None:
        self.loaded.clear()
        self._weights.clear()
        self._changes.clear()


def adapter_tokens(layout: Layout) -> dict[int, tuple[Indices, Indices]]:
    """Return each adapter's tokens and logits in a step, by index; adapter 0 is left out."""
    tokens: defaultdict[int, list[int]] = defaultdict(list)
    for span in layout.spans:
        if span.adapter:
            tokens[span.adapter] += range(span.begin, span.end)
    result = {}
    for adapter, token_indices in tokens.items():
        rows = np.flatnonzero(np.isin(layout.rows, token_indices))
        result[adapter] = (np.array(token_indices), rows)
    return result
