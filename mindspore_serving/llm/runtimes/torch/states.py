"""Recurrent states of layers, and the operations on them.

A sequence's new tokens are one piece, or two if the state between them is kept.  Sequences with one
new token form a piece together.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.nn import functional

from mindspore_serving.llm.models.layer_state import LayerState
from mindspore_serving.llm.models.state_rules import LENGTH_EPS, Heads
from mindspore_serving.llm.runtimes.layout import Layout
from mindspore_serving.llm.step import StateSlots

CHUNK = 64  # tokens whose updates of the state are computed together
NO_SLOTS = StateSlots(-1, -1)


class StateCache:
    """Tensors [slots, *shape] in float32, one for each part of each layer's state."""

    def __init__(self, state: LayerState | None, num_slots: int, device: str) -> None:
        shapes = [(num_slots + 1, *shape) for shape in state.shapes] if state else []
        self.layers = {
            layer: [torch.zeros(shape, device=device) for shape in shapes]
            for layer in (state.layers if state else ())
        }  # the last slot receives states that are not kept
        self.state_bytes = len(self.layers) * 4 * sum(math.prod(shape[1:]) for shape in shapes)

    def read(self, slot: int) -> memoryview:
        """Return a copy of the state in a slot."""
        parts = [table[slot].reshape(-1) for tables in self.layers.values() for table in tables]
        return memoryview(torch.cat(parts).cpu().numpy()).cast("B")

    def replace(self, slot: int, content: memoryview) -> None:
        """Overwrite the state in a slot with what `read` returned."""
        begin, source = 0, torch.frombuffer(content, dtype=torch.float32)
        for table in (table for tables in self.layers.values() for table in tables):
            part = table[slot].view(-1)
            part.copy_(source[begin : begin + part.numel()])
            begin += part.numel()


@dataclass(frozen=True, slots=True)
class StatePiece:
    """Tokens `begin` .. `end - 1` of a step: of one sequence, or one of each sequence in `read`.

    `read` and `write` are state slots; -1 reads zeros, and writes a state that is not kept.
    """

    begin: int
    end: int
    read: list[int]
    write: list[int]

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return the piece's rows of `x`, [T, ...], as [sequences, tokens, ...]."""
        return x[self.begin : self.end].unflatten(0, (len(self.read), -1))

    def load(self, table: torch.Tensor) -> torch.Tensor:
        """Return a copy of the states to start from, [sequences, *shape]."""
        states = table[self.read]
        for index, slot in enumerate(self.read):
            if slot < 0:
                states[index] = 0
        return states


def state_pieces(layout: Layout) -> list[StatePiece]:
    """Split a step into pieces, in the order in which they have to be computed."""
    pieces: list[StatePiece] = []
    for span in layout.spans:
        state, previous = span.state or NO_SLOTS, pieces[-1] if pieces else None
        if state.snapshot >= 0:
            middle = span.begin + state.kept
            pieces.append(StatePiece(span.begin, middle, [state.read], [state.snapshot]))
            pieces.append(StatePiece(middle, span.end, [state.snapshot], [state.write]))
        elif (
            previous
            and span.end - span.begin == 1
            and previous.end - previous.begin == len(previous.read)
        ):
            read, write = [*previous.read, state.read], [*previous.write, state.write]
            pieces[-1] = StatePiece(previous.begin, span.end, read, write)
        else:
            pieces.append(StatePiece(span.begin, span.end, [state.read], [state.write]))
    return pieces


def causal_convolution(
    x: torch.Tensor, table: torch.Tensor, weight: torch.Tensor, pieces: Iterable[StatePiece]
) -> torch.Tensor:
    """Convolve `x`, [T, channels], with the inputs before it; the result is like `x`.

    `table`, [slots, channels, width], has the last inputs, and is updated.
    """
    out, width = torch.empty_like(x), weight.shape[-1]
    for piece in pieces:
        new = piece.rows(x).transpose(1, 2)
        inputs = torch.cat([piece.load(table)[..., 1:].to(x.dtype), new], -1)
        result = functional.conv1d(inputs, weight, groups=weight.shape[0])
        out[piece.begin : piece.end] = result.transpose(1, 2).flatten(0, 1)
        padded = functional.pad(inputs, (1, 0))  # as wide as the state
        table[piece.write] = padded[..., -width:].float()
    return out


@dataclass(frozen=True, slots=True)
class RuleInputs:
    """Inputs of one piece or chunk, float32, with K key heads of V value heads each.

    q and k are [B, K, 1, C, key_dim], v [B, K, V, C, value_dim], decay (a logarithm) and factor [B,
    K, V, C].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    factor: torch.Tensor

    def part(self, begin: int) -> "RuleInputs":
        """Return the chunk of tokens that starts at `begin`."""
        end = begin + CHUNK
        parts = (self.q, self.k, self.v, self.decay, self.factor)
        return RuleInputs(*(x[:, :, :, begin:end] for x in parts))


Update: TypeAlias = Callable[[RuleInputs, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def delta_rule(
    parts: tuple[torch.Tensor, ...], table: torch.Tensor, heads: Heads, pieces: Iterable[StatePiece]
) -> torch.Tensor:
    """Run the gated delta rule; return [T, value_heads * value_dim], float32.

    `parts` are q, k, v, decay and beta, [T, features] each; `table`, [slots, value_heads,
    value_dim, key_dim], has the states, and is updated.
    """
    q, k, *rest = (x.float() for x in parts)
    q, k = (x.unflatten(-1, (heads.key_heads, -1)) for x in (q, k))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LENGTH_EPS) for x in (q, k))
    parts = (q.flatten(1) * heads.key_dim**-0.5, k.flatten(1), *rest)
    return _computed(parts, table, heads, pieces, _delta_updates)


def selective_scan(
    parts: tuple[torch.Tensor, ...], table: torch.Tensor, heads: Heads, pieces: Iterable[StatePiece]
) -> torch.Tensor:
    """Run the selective scan, without its skip connection; shapes are those of `delta_rule`.

    `parts` are C, B, x, decay and time steps, float32.
    """
    return _computed(parts, table, heads, pieces, lambda x, *_: x.v * x.factor[..., None])


def _computed(
    parts: tuple[torch.Tensor, ...],
    table: torch.Tensor,
    heads: Heads,
    pieces: Iterable[StatePiece],
    update: Update,
) -> torch.Tensor:
    inputs = _by_heads(parts, heads)
    out = torch.empty(len(parts[0]), heads.values, device=table.device)
    for piece in pieces:
        piece_inputs = RuleInputs(*(piece.rows(x).movedim(1, 3) for x in inputs))
        matrix = piece.load(table).mT.unflatten(1, (heads.key_heads, -1))
        results = []
        for begin in range(0, piece_inputs.q.shape[3], CHUNK):
            result, matrix = _chunk(piece_inputs.part(begin), matrix, update)
            results.append(result)
        joined = torch.cat(results, 3).movedim(3, 1)  # [B, tokens, key heads, V, value_dim]
        out[piece.begin : piece.end] = joined.flatten(2).flatten(0, 1)
        table[piece.write] = matrix.mT.flatten(1, 2)
    return out


def _by_heads(parts: tuple[torch.Tensor, ...], heads: Heads) -> list[torch.Tensor]:
    """Return q and k [T, K, 1, key_dim], v [T, K, V, value_dim], decay and factor [T, K, V]."""
    q, k, v, *rest = parts
    values_per_key = heads.value_heads // heads.key_heads
    q, k = (x.unflatten(-1, (heads.key_heads, 1, -1)) for x in (q, k))
    v = v.unflatten(-1, (heads.key_heads, values_per_key, -1))
    return [q, k, v, *(x.unflatten(-1, (heads.key_heads, values_per_key)) for x in rest)]


def _chunk(
    x: RuleInputs, matrix: torch.Tensor, update: Update
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a chunk's results and its final state, [B, K, V, key_dim, value_dim].

    A token's key is written with u_t: the result of t is e^G_t S^T q_t + the sum over i <= t of
    e^(G_t - G_i) (k_i q_t) u_i, with G the sums of decays.
    """
    total = x.decay.cumsum(-1)
    grown = total.exp()[..., None]
    decay_between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    new = update(x, matrix, grown, decay_between)
    result = grown * (x.q @ matrix) + (x.q @ x.k.mT * decay_between) @ new
    decay_to_end = (total[..., -1:] - total).exp()[..., None]
    return result, matrix * grown[..., -1:, :] + x.k.mT @ (decay_to_end * new)


def _delta_updates(
    x: RuleInputs, matrix: torch.Tensor, grown: torch.Tensor, decay_between: torch.Tensor
) -> torch.Tensor:
    """Solve for what the delta rule writes, a triangular system of linear equations.

    u_t = b_t (v_t - e^G_t S^T k_t - sum over i < t of e^(G_t - G_i) (k_i k_t) u_i)
    """
    beta = x.factor[..., None]
    coefficients = (beta * (x.k @ x.k.mT) * decay_between).tril(-1)
    targets = beta * (x.v - grown * (x.k @ matrix))
    return torch.linalg.solve_triangular(coefficients, targets, upper=False, unitriangular=True)
