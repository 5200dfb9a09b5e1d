"""Layers of vision transformers that are computed as graphs: their parts and names of tensors.

Knows no runtime.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerSettings:
    """The layers of a vision transformer, which are alike.

    Attributes:
        heads: attention heads.
        activation: name of that within the matrices of a layer, as transformers has it.
        epsilon: of the norms.
        path: of a layer, with {} for its number.
        norms: before attention and before the matrices.
        inputs: the matrix of queries, keys and values, or the three of them.
        output: the matrix behind attention.
        mlp: (up, down), or (gate, up, down), whose first product passes the activation.
        is_rms: norms do not subtract the mean, and have no bias (RMSNorm).
        after: norms behind attention and behind the matrices, if there are some.
        scales: of the features of both (LayerScale), if there are some.
        normed: norms of the features of all heads' queries, and keys (QKNorm), if there are some.
        head_normed: as `normed`, of each head's; values get one without weights.
        is_clipped: the inputs and outputs of matrices are clipped.
        is_unscaled: scores are not divided by the root of a head's features.
    """

    heads: int
    activation: str
    epsilon: float
    path: str
    norms: tuple[str, str]
    inputs: tuple[str, ...]
    output: str
    mlp: tuple[str, ...]
    is_rms: bool = False
    after: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    normed: tuple[str, ...] = ()
    head_normed: tuple[str, ...] = ()
    is_clipped: bool = False
    is_unscaled: bool = False


def matrices(stem: str, names: str = "q_proj k_proj v_proj", end: str = "") -> tuple[str, ...]:
    """Return the names of matrices below `stem`."""
    return tuple(f"{stem}.{name}{end}" for name in names.split())
