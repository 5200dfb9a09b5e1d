"""The states of layers that have some in place of keys and values, and what computes with them.

New tokens of a sequence are one piece, or two if the state between them is kept.  Sequences with
one new token are a piece together.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import functional

from mindspore_serving.llm.models.ops import LENGTH_EPS, DeltaRule
from mindspore_serving.llm.models.spec_parts import LayerState
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
class Piece:
    """The tokens `begin` .. `end - 1` of a step: of one sequence, or of as many as there are
    `read`, one each.  -1 reads zeros, and writes to what nobody wants."""

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


def pieces_of(layout: Layout) -> list[Piece]:
    """In the order in which they are to be computed."""
    found: list[Piece] = []
    for span in layout.spans:
        state, previous = span.state or NOWHERE, found[-1] if found else None
        if state.snapshot >= 0:
            middle = span.begin + state.kept
            found.append(Piece(span.begin, middle, [state.read], [state.snapshot]))
            found.append(Piece(middle, span.end, [state.snapshot], [state.write]))
        elif (
            previous
            and span.end - span.begin == 1
            and previous.end - previous.begin == len(previous.read)
        ):
            read, write = [*previous.read, state.read], [*previous.write, state.write]
            found[-1] = Piece(previous.begin, span.end, read, write)
        else:
            found.append(Piece(span.begin, span.end, [state.read], [state.write]))
    return found


def convolved(
    x: torch.Tensor, table: torch.Tensor, weight: torch.Tensor, pieces: Iterable[Piece]
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
class DeltaInputs:
    """Of one piece or chunk, float32: q and k [B, heads, C, key_dim], v [B, heads, C, value_dim],
    decay (as a logarithm) and beta [B, heads, C]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor

    def part(self, begin: int) -> "DeltaInputs":
        end = begin + CHUNK
        return DeltaInputs(
            *(x[:, :, begin:end] for x in (self.q, self.k, self.v, self.decay, self.beta))
        )


def delta_rule(
    parts: tuple[torch.Tensor, ...], table: torch.Tensor, rule: DeltaRule, pieces: Iterable[Piece]
) -> torch.Tensor:
    """[T, value_heads * value_dim], float32, of q, k, v, decay and beta, [T, features] each;
    `table` [slots, value_heads, value_dim, key_dim] has the matrices."""
    inputs = _by_heads(parts, rule)
    out = torch.empty(parts[0].shape[0], rule.value_heads * rule.value_dim, device=table.device)
    for piece in pieces:
        own = DeltaInputs(*(piece.rows(x).transpose(1, 2) for x in inputs))
        matrix = piece.load(table).transpose(2, 3)
        results = []
        for begin in range(0, own.q.shape[2], CHUNK):
            result, matrix = _chunk(own.part(begin), matrix)
            results.append(result)
        whole = torch.cat(results, 2).transpose(1, 2)  # [B, tokens, heads, value_dim]
        out[piece.begin : piece.end] = whole.flatten(2).flatten(0, 1)
        table[piece.write] = matrix.transpose(2, 3)
    return out


def _by_heads(parts: tuple[torch.Tensor, ...], rule: DeltaRule) -> list[torch.Tensor]:
    """q, k [T, value_heads, key_dim] of length 1, v, decay and beta [T, value_heads]."""
    q, k, v, decay, beta = (x.float() for x in parts)
    each = rule.value_heads // rule.key_heads
    q, k = (x.unflatten(-1, (rule.key_heads, -1)) for x in (q, k))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LENGTH_EPS) for x in (q, k))
    q, k = (x.repeat_interleave(each, 1) for x in (q * rule.key_dim**-0.5, k))
    return [q, k, v.unflatten(-1, (rule.value_heads, -1)), decay, beta]


def _chunk(x: DeltaInputs, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The results and the matrix [B, heads, key_dim, value_dim] behind the tokens of `x`.

    With G the sums of decays, what token t writes beside its key is u_t = b_t (v_t - e^G_t S^T k_t
    - sum over i < t of e^(G_t - G_i) (k_i k_t) u_i): linear equations, of a triangle.
    """
    total = x.decay.cumsum(-1)
    grown = total.exp()[..., None]
    between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    triangle = (x.beta[..., None] * (x.k @ x.k.transpose(2, 3)) * between).tril(-1)
    right = x.beta[..., None] * (x.v - grown * (x.k @ matrix))
    written = torch.linalg.solve_triangular(triangle, right, upper=False, unitriangular=True)
    result = grown * (x.q @ matrix) + (x.q @ x.k.transpose(2, 3) * between) @ written
    left = (total[..., -1:] - total).exp()[..., None]
    return result, matrix * grown[:, :, -1:] + (x.k * left).transpose(2, 3) @ written
