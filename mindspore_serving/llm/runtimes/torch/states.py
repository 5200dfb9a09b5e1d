"""The states of layers that have some beside keys and values, and what computes with them.

New tokens of a sequence are one piece, or two if the state between them is kept.  Sequences with
one new token are a piece together.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.nn import functional

from mindspore_serving.llm.models.layer_state import LayerState
from mindspore_serving.llm.models.state_rules import LENGTH_EPS, Heads
from mindspore_serving.llm.runtimes.layout import Layout
from mindspore_serving.llm.step import StateSlots

CHUNK = 64  # tokens whose updates of a matrix are computed at once
NOWHERE = StateSlots(-1, -1)


class StateCache:
    """A tensor [slots, *shape] for each part of each layer's state, float32."""

    def __init__(self, state: LayerState | None, num_slots: int, device: str) -> None:
        shapes = [(num_slots + 1, *shape) for shape in state.shapes] if state else []
        self.layers = {
            layer: [torch.zeros(shape, device=device) for shape in shapes]
            for layer in (state.layers if state else ())
        }  # the last slot is for states that nobody wants


@dataclass(frozen=True, slots=True)
class StatePiece:
    """The tokens `begin` .. `end - 1` of a step: of one sequence, or of as many as there are
    `read`, one each.  -1 reads zeros, and writes to what nobody wants.
    """

    begin: int
    end: int
    read: list[int]
    write: list[int]

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """[sequences, tokens, ...] of [T, ...]."""
        return x[self.begin : self.end].unflatten(0, (len(self.read), -1))

    def load(self, table: torch.Tensor) -> torch.Tensor:
        """[sequences, *shape]; a copy."""
        found = table[self.read]
        for index, slot in enumerate(self.read):
            if slot < 0:
                found[index] = 0
        return found


def pieces_of(layout: Layout) -> list[StatePiece]:
    """In the order in which they are to be computed."""
    found: list[StatePiece] = []
    for span in layout.spans:
        state, previous = span.state or NOWHERE, found[-1] if found else None
        if state.snapshot >= 0:
            middle = span.begin + state.kept
            found.append(StatePiece(span.begin, middle, [state.read], [state.snapshot]))
            found.append(StatePiece(middle, span.end, [state.snapshot], [state.write]))
        elif (
            previous
            and span.end - span.begin == 1
            and previous.end - previous.begin == len(previous.read)
        ):
            read, write = [*previous.read, state.read], [*previous.write, state.write]
            found[-1] = StatePiece(previous.begin, span.end, read, write)
        else:
            found.append(StatePiece(span.begin, span.end, [state.read], [state.write]))
    return found


def convolved(
    x: torch.Tensor, table: torch.Tensor, weight: torch.Tensor, pieces: Iterable[StatePiece]
) -> torch.Tensor:
    """[T, channels], like `x`; `table` [slots, channels, width] has the last inputs."""
    out, width = torch.empty_like(x), weight.shape[-1]
    for piece in pieces:
        new = piece.rows(x).transpose(1, 2)
        inputs = torch.cat([piece.load(table)[..., 1:].to(x.dtype), new], -1)
        result = functional.conv1d(inputs, weight, groups=weight.shape[0])
        out[piece.begin : piece.end] = result.transpose(1, 2).flatten(0, 1)
        whole = functional.pad(inputs, (1, 0))  # as wide as the state
        table[piece.write] = whole[..., -width:].float()
    return out


@dataclass(frozen=True, slots=True)
class RuleInputs:
    """Of one piece or chunk, float32, with K heads of queries and keys, each for V heads of values:
    q and k [B, K, 1, C, key_dim], v [B, K, V, C, value_dim], decay (as a logarithm) and factor
    [B, K, V, C].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    factor: torch.Tensor

    def part(self, begin: int) -> "RuleInputs":
        end = begin + CHUNK
        parts = (self.q, self.k, self.v, self.decay, self.factor)
        return RuleInputs(*(x[:, :, :, begin:end] for x in parts))


Written: TypeAlias = Callable[[RuleInputs, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def delta_rule(
    parts: tuple[torch.Tensor, ...], table: torch.Tensor, heads: Heads, pieces: Iterable[StatePiece]
) -> torch.Tensor:
    """[T, value_heads * value_dim], float32, of q, k, v, decay and beta, [T, features] each;
    `table` [slots, value_heads, value_dim, key_dim] has the matrices.
    """
    q, k, *rest = (x.float() for x in parts)
    q, k = (x.unflatten(-1, (heads.key_heads, -1)) for x in (q, k))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LENGTH_EPS) for x in (q, k))
    parts = (q.flatten(1) * heads.key_dim**-0.5, k.flatten(1), *rest)
    return _computed(parts, table, heads, pieces, _missing)


def selective_scan(
    parts: tuple[torch.Tensor, ...], table: torch.Tensor, heads: Heads, pieces: Iterable[StatePiece]
) -> torch.Tensor:
    """The same of C, B, x, decay and time steps, float32, without what skips the state."""
    return _computed(parts, table, heads, pieces, lambda x, *_: x.v * x.factor[..., None])


def _computed(
    parts: tuple[torch.Tensor, ...],
    table: torch.Tensor,
    heads: Heads,
    pieces: Iterable[StatePiece],
    written: Written,
) -> torch.Tensor:
    inputs = _by_heads(parts, heads)
    out = torch.empty(len(parts[0]), heads.values, device=table.device)
    for piece in pieces:
        own = RuleInputs(*(piece.rows(x).movedim(1, 3) for x in inputs))
        matrix = piece.load(table).mT.unflatten(1, (heads.key_heads, -1))
        results = []
        for begin in range(0, own.q.shape[3], CHUNK):
            result, matrix = _chunk(own.part(begin), matrix, written)
            results.append(result)
        whole = torch.cat(results, 3).movedim(3, 1)  # [B, tokens, key heads, V, value_dim]
        out[piece.begin : piece.end] = whole.flatten(2).flatten(0, 1)
        table[piece.write] = matrix.mT.flatten(1, 2)
    return out


def _by_heads(parts: tuple[torch.Tensor, ...], heads: Heads) -> list[torch.Tensor]:
    """q and k [T, K, 1, key_dim], v [T, K, V, value_dim], decay and factor [T, K, V]."""
    q, k, v, *rest = parts
    each = heads.value_heads // heads.key_heads
    q, k = (x.unflatten(-1, (heads.key_heads, 1, -1)) for x in (q, k))
    v = v.unflatten(-1, (heads.key_heads, each, -1))
    return [q, k, v, *(x.unflatten(-1, (heads.key_heads, each)) for x in rest)]


def _chunk(
    x: RuleInputs, matrix: torch.Tensor, written: Written
) -> tuple[torch.Tensor, torch.Tensor]:
    """The results and the matrix [B, K, V, key_dim, value_dim] behind the tokens of `x`.

    A token's key is written with u_t: the result of t is e^G_t S^T q_t + the sum over i <= t of
    e^(G_t - G_i) (k_i q_t) u_i, with G the sums of decays.
    """
    total = x.decay.cumsum(-1)
    grown = total.exp()[..., None]
    between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    new = written(x, matrix, grown, between)
    result = grown * (x.q @ matrix) + (x.q @ x.k.mT * between) @ new
    left = (total[..., -1:] - total).exp()[..., None]
    return result, matrix * grown[..., -1:, :] + x.k.mT @ (left * new)


def _missing(
    x: RuleInputs, matrix: torch.Tensor, grown: torch.Tensor, between: torch.Tensor
) -> torch.Tensor:
    """What the delta rule writes: u_t = b_t (v_t - e^G_t S^T k_t - sum over i < t of
    e^(G_t - G_i) (k_i k_t) u_i), linear equations of a triangle.
    """
    beta = x.factor[..., None]
    triangle = (beta * (x.k @ x.k.mT) * between).tril(-1)
    right = beta * (x.v - grown * (x.k @ matrix))
    return torch.linalg.solve_triangular(triangle, right, upper=False, unitriangular=True)
