"""A method as straight-line stages over numbered slots: slots 0..n-1 are its inputs.

Plain frozen data: what is to be run, not how.  `servable.method` builds it, the worker runs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from mindspore_serving.core.value import Value


class StageKind(Enum):
    FUNCTION = "function"  # a Python function of servable_config.py
    MODEL = "model"  # one graph of a declared model
    BUILTIN = "builtin"  # a named function of ours, e.g. argmax_cpp
    LANGUAGE = "language"  # the servable's language model
    TASK = "task"  # a Hugging Face model that does not generate


@dataclass(frozen=True, slots=True)
class Stage:
    """One step: which slots go in, which come out, and how many instances at once.

    `target` is a function's id, a model's key or path, or a built-in's name.  `batch_size` is None
    for one instance per call, 0 to follow the model's batch size, else the most instances per call.
    A stage that `streams` gives several outcomes for an instance, one after another.
    """

    kind: StageKind
    target: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tag: str
    batch_size: int | None = None
    subgraph: int = 0
    streams: bool = False


@dataclass(frozen=True, slots=True)
class Method:
    """An entry of a servable: named inputs, stages in order, and the slots that are returned.

    `retry` is False for a method that must not be run twice for one request, not even when the
    worker that had it died.  `defaults` are the values of inputs that a request may leave out.
    `dtypes` are the types that models want of inputs; a worker adds them when it has the models.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stages: tuple[Stage, ...]
    returns: tuple[int, ...]
    retry: bool = True
    defaults: Mapping[str, Value] = field(default_factory=dict)
    dtypes: Mapping[str, "np.dtype[Any]"] = field(default_factory=dict)

    @property
    def streams(self) -> bool:
        """Whether it can answer in pieces."""
        return any(stage.streams for stage in self.stages)

    @property
    def has_only_models(self) -> bool:
        """Whether a worker without a device could do nothing for it."""
        return bool(self.stages) and all(s.kind is StageKind.MODEL for s in self.stages)
