"""Checkpoint tensors as PyTorch tensors."""

from typing import TypeAlias

import numpy as np
import torch

from mindspore_serving.llm.checkpoint.weights import Checkpoint

Tensor: TypeAlias = torch.Tensor
STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class TorchWeights:
    """Tensors of a checkpoint on the device, by name; each is converted at its first use."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: str) -> None:
        self.checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._loaded: dict[str, Tensor] = {}

    def has(self, name: str) -> bool:
        return self.checkpoint.has(name)

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor, always the same object.  Raises StartError naming a missing one."""
        weight = self._loaded.get(name)
        if weight is None:
            weight = self._loaded[name] = self._load(name)
        return weight

    def clear(self) -> None:
        self._loaded.clear()

    def names(self) -> dict[Tensor, str]:
        """Return the names of the tensors that have been used."""
        return {weight: name for name, weight in self._loaded.items()}

    def _load(self, name: str) -> Tensor:
        stored, _, bits = self.checkpoint.raw(name)
        if stored in STORED:
            # A copy: the mapped file is read-only, which a tensor cannot be.
            signed = np.int32 if stored == "F32" else np.int16
            weight = torch.from_numpy(np.array(bits).view(signed)).view(STORED[stored])
        else:
            weight = torch.from_numpy(np.array(self.checkpoint.f32(name)))
        return weight.to(self._device, self._dtype)
