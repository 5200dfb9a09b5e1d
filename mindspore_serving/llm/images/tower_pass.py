"""Interface of the computation of a vision tower, which a library or a graph does."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from mindspore_serving.llm.step import Vectors

MAX_BATCH_BYTES = 16 << 20  # of the inputs of images that are computed together
Inputs: TypeAlias = Mapping[str, npt.NDArray[Any]]


class TowerPass(Protocol):
    """Computation of a vision tower."""

    @property
    def names(self) -> Collection[str]:
        """Names of the inputs that it takes."""

    def run(self, images: Sequence[Inputs]) -> Vectors:
        """Return the vectors of images of equal shapes, one image after the other.

        Raises ServingError.
        """
