"""The seam every model format is behind: load, signature, run, close.

A backend runs one declared model, of one or several graphs, on one device.  It knows nothing of
methods, batching or requests: it gets arrays that fit its signature and returns arrays.
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
    """What to load: the declaration, its files as absolute paths, the device and the key.

    `device_type` "cpu", "gpu" or "ascend" is chosen already; `dec_key` is of an encrypted MindIR.
    """

    spec: DeclaredModel
    paths: tuple[str, ...]
    device_type: str = "cpu"
    device_id: int = 0
    dec_key: bytes | None = field(default=None, repr=False)  # not into logs and tracebacks
    dec_mode: str = "AES-GCM"
    config_file: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class LoadedModel(Protocol):
    """A model that runs.  Used by one thread; a backend that wants more makes its own."""

    @property
    def signature(self) -> tuple[Signature, ...]:
        """One signature per graph, in the order of `source.paths`."""
        ...

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Run graph `subgraph` on C-contiguous arrays that fit its signature.

        Shapes and dtypes were checked against the signature before.  Raises StageFailed with the
        runtime's own words.  The results may alias the backend's memory until the next `run`.
        """
        ...

    def close(self) -> None:
        """Give back the device's memory; the backend is not used again."""
        ...


class Backend(LoadedModel, Protocol):
    """A model format."""

    @classmethod
    def load(cls, source: ModelSource) -> "Backend":
        """Load and warm up.  Raises StartError naming the file and the cause."""
        ...
