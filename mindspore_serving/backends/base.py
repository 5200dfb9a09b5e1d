"""Interface of all model formats: load, signature, run, close.

A backend runs one declared model, of one or several graphs, on one device.  It knows no methods,
batching or requests: it gets arrays that fit its signature and returns arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import Signature

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to load: its declaration, absolute paths of its files, device and key.

    `device_type` is "cpu", "gpu" or "ascend"; `dec_key` is that of an encrypted MindIR.
    """

    spec: DeclaredModel
    paths: tuple[str, ...]
    device_type: str = "cpu"
    device_id: int = 0
    dec_key: bytes | None = field(default=None, repr=False)  # kept out of logs and tracebacks
    dec_mode: str = "AES-GCM"
    config_file: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class LoadedModel(Protocol):
    """A model that runs.  It is used by one thread; a backend that needs more starts them."""

    @property
    def signature(self) -> tuple[Signature, ...]:
        """Signatures of the graphs, in the order of `source.paths`."""
        ...

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Run graph `subgraph` on C-contiguous arrays that fit its signature.

        Shapes and dtypes were checked against the signature before.  The results may alias the
        backend's memory until the next `run`.

        Raises StageFailed with the runtime's message.
        """
        ...

    def close(self) -> None:
        """Release the device's memory; the backend is not used again."""
        ...


class Backend(LoadedModel, Protocol):
    """Backend of a model format."""

    @classmethod
    def load(cls, source: ModelSource) -> "Backend":
        """Load and warm up the model.  Raises StartError naming the file and the cause."""
        ...
