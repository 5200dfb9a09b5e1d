"""Update rules of recurrent states: the gated delta rule and the selective scan.

Sizes and names of tensors; `ops` has the operations.
"""

from dataclasses import dataclass

LENGTH_EPS = 1e-6  # added to the squared length of queries and keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Heads of a recurrent state.

    Each of `key_heads` heads of queries and keys, of `key_dim` features, serves the same number of
    the `value_heads` heads of values, of `value_dim` features.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def keys(self) -> int:
        """Features of the keys of all heads; the queries have as many."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def features(self) -> int:
        return 2 * self.keys + self.values


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """The gated delta rule of one layer.

    A value head's state S [key_dim, value_dim] is S = exp(g) S, then S += k (b (v - S^T k))^T, and
    the result is S^T q; q and k have length 1, q is divided by sqrt(key_dim), b = sigmoid(beta),
    g = -exp(a_log) softplus(alpha + dt_bias).  `a_log` and `dt_bias` name tensors [value_heads].
    """

    heads: Heads
    a_log: str
    dt_bias: str


@dataclass(frozen=True, slots=True)
class SelectiveScan:
    """The selective scan of a Mamba-2 layer, with x as values, B as keys and C as queries.

    A value head's state S [key_dim, value_dim] is S = exp(g) S + B (d x)^T, and the result is
    S^T C + skip x; d = softplus(step + dt_bias) within `limits`, g = -exp(a_log) d.  `a_log`,
    `dt_bias` and `skip` name tensors [value_heads].
    """

    heads: Heads
    limits: tuple[float, float]
    a_log: str
    dt_bias: str
    skip: str
