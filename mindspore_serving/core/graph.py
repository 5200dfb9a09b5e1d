"""Graph of a method: stages in a line over numbered slots, of which 0..n-1 are its inputs.

Plain frozen data, built by `servable.method` and run by the worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from mindspore_serving.core.examples import Example
from mindspore_serving.core.sequences import MethodControl, MethodState
from mindspore_serving.core.value import Value


class StageKind(Enum):
    """Kind of the target of a stage."""

    FUNCTION = "function"  # a Python function of servable_config.py
    MODEL = "model"  # one graph of a declared model
    BUILTIN = "builtin"  # a named function of ours, e.g. argmax_cpp
    LANGUAGE = "language"  # the servable's language model
    TASK = "task"  # a Hugging Face model that does not generate
    SERVABLE = "servable"  # a method of another servable


@dataclass(frozen=True, slots=True)
class Stage:
    """Step of a method: input slots, output slots, and the number of instances per call.

    `target` is a function's id, a model's key or path, a built-in's name, or "servable.method", of
    which `version` is meant (0: the newest). `batch_size` is None
    for one instance per call, 0 to follow the model's batch size, else the max instances per call.
    A stage that `streams` returns several outputs for an instance, one after another.
    """

    kind: StageKind
    target: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tag: str
    batch_size: int | None = None
    subgraph: int = 0
    streams: bool = False
    version: int = 0


@dataclass(frozen=True, slots=True)
class Method:
    """Method of a servable: named inputs, stages in order, and the slots that it returns.

    `retry` is False if it must not run twice for one request, even if its worker died. `defaults`
    are the values of optional inputs, `examples` those that clients are shown. `dtypes` are the
    types of models' inputs, which a worker adds when it has loaded the models. `cache` says if its
    answers may be cached; None: they may if it can `retry`.  The slots of `states` follow those of
    the inputs, those of `controls` follow the states; a request of a method that `needs_sequence`
    is in one.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stages: tuple[Stage, ...]
    returns: tuple[int, ...]
    retry: bool = True
    defaults: Mapping[str, Value] = field(default_factory=dict)
    dtypes: Mapping[str, "np.dtype[Any]"] = field(default_factory=dict)
    examples: Mapping[str, Example] = field(default_factory=dict)
    states: tuple[MethodState, ...] = ()
    controls: tuple[MethodControl, ...] = ()
    needs_sequence: bool = False
    cache: bool | None = None

    @property
    def has_sequences(self) -> bool:
        """True if its answers depend on the sequence of a request."""
        return bool(self.states or self.controls)

    @property
    def num_first(self) -> int:
        """Number of slots that are filled before the first stage."""
        return len(self.inputs) + len(self.states) + len(self.controls)

    @property
    def streams(self) -> bool:
        """True if it can stream its answer."""
        return any(stage.streams for stage in self.stages)

    @property
    def calls(self) -> bool:
        """True if it has methods of other servables as stages."""
        return any(stage.kind is StageKind.SERVABLE for stage in self.stages)

    @property
    def has_only_models(self) -> bool:
        """True if a worker without a device cannot run any of its stages."""
        return bool(self.stages) and all(s.kind is StageKind.MODEL for s in self.stages)
