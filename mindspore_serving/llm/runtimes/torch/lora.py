"""LoRA adapters in PyTorch: for the tokens that chose one, a product of low rank is added to that
of the model's matrix, so that one step computes rows of several adapters and of none.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.lora import LowRank, read_adapter
from mindspore_serving.llm.runtimes.layout import Indices, Layout

Tensor: TypeAlias = torch.Tensor
Chosen: TypeAlias = tuple[tuple[int, Tensor], ...]  # (adapter, its tokens), without 0

IN_A_LAYER = ".layers."  # matrices outside see the wanted tokens alone, and are not adapted


@dataclass(frozen=True, slots=True)
class Change:
    """`LowRank` on the device."""

    down: Tensor
    up: Tensor


class Adapters:
    """The changes of all adapters, by the weight that they are added to."""

    def __init__(self) -> None:
        # A tensor is equal to itself alone as a key, whatever is in it.
        self._changes: defaultdict[Tensor, dict[int, Change]] = defaultdict(dict)
        self._places: dict[tuple[Tensor, int], str] = {}  # not used yet -> what it is called

    def add(self, index: int, where: str, weight: Tensor, change: LowRank) -> None:
        """Raises StartError, which begins with `where`, if `change` does not fit `weight`."""
        shape = (change.up.shape[0], change.down.shape[1])
        if shape != tuple(weight.shape):
            raise StartError(f"{where} as {list(shape)}, but it is {list(weight.shape)}")
        down, up = (
            torch.from_numpy(part.copy()).to(weight.device, weight.dtype)
            for part in (change.down, change.up)
        )
        self._changes[weight][index] = Change(down, up)
        self._places[weight, index] = where

    def apply(self, chosen: Chosen, weight: Tensor, x: Tensor, y: Tensor) -> None:
        """Add to `y`, which is x @ weight.T, what the chosen adapters change."""
        changes = self._changes.get(weight)
        if changes is None:
            return
        for index, tokens in chosen:
            change = changes.get(index)
            if change is not None:
                y[tokens] += x[tokens] @ change.down.T @ change.up.T
                self._places.pop((weight, index), None)

    def check_used(self) -> None:
        """Raises StartError if a pass with every adapter has left out a change."""
        for where in self._places.values():
            raise StartError(f"{where}, which cannot be adapted in this architecture")

    def clear(self) -> None:
        self._changes.clear()
        self._places.clear()


def load_adapters(
    paths: Mapping[str, str | Path], has: Callable[[str], bool], weight: Callable[[str], Tensor]
) -> Adapters:
    """Read the adapters 1, 2 and so on; `has` and `weight` are the model's.  Raises StartError."""
    adapters = Adapters()
    for index, (name, path) in enumerate(paths.items(), 1):
        for tensor, change in read_adapter(path).items():
            where = f"adapter {name!r} changes {tensor!r}"
            if IN_A_LAYER not in tensor or not has(tensor):
                raise StartError(f"{where}, expected matrices in the model's layers")
            adapters.add(index, where, weight(tensor), change)
    return adapters


def chosen_adapters(layout: Layout) -> dict[int, Indices]:
    """Which tokens of a step have which adapter, 0 left out."""
    tokens: defaultdict[int, list[int]] = defaultdict(list)
    for span in layout.spans:
        if span.adapter:
            tokens[span.adapter] += range(span.begin, span.end)
    return {index: np.array(own) for index, own in tokens.items()}
