"""Arithmetic on embeddings.  Knows no model."""

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


def unit_vectors(vectors: Vectors) -> Vectors:
    """`vectors` [count, size] scaled to length 1; one of zeros stays as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = vectors / np.maximum(lengths, np.float32(1e-12))
    return scaled
