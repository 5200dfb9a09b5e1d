"""Counts of the tokens that experts got, their file, and the experts that this rank has by them."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.hub.download import write_atomically
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.expert_block import HeldExperts
from mindspore_serving.llm.models.spec_parts import Mixture
from mindspore_serving.llm.parallel.experts import assign_experts, held_by, rank_loads
from mindspore_serving.llm.parallel.group import Grid

Counts = npt.NDArray[np.int64]

MAX_FILE = 64 << 20  # bytes of a file of counts
MAX_COUNT = 1 << 48  # of an expert in a file: twice as many are still a number of 64 bits
SAVE_SECONDS = 600.0  # between two writes of the file


class CountsFile(msgspec.Struct):
    """Content of a file of counts: tokens of each expert, by layer."""

    layers: dict[int, list[int]]


class RankExperts:
    """Experts that this rank has in each of its layers with a mixture, and counts of their tokens.

    `counts` are those of all experts since the start, [layer of `mixture`, expert], of layers that
    other stages compute as of the last `gather`.  `layers` are the layers of this rank.
    """

    def __init__(self, mixture: Mixture, layers: range, config: EngineConfig, grid: Grid) -> None:
        self._all_layers = sorted(mixture.layers)
        self.layers = [layer for layer in self._all_layers if layer in layers]
        self.is_divided = grid.stages.size > 1  # over stages, which have counts of their own
        self._grid, self._path = grid, config.expert_counts
        self._earlier = self._read_earlier(mixture.num_experts)
        size, spare = grid.peers.size, config.expert_replicas
        placements = [assign_experts(row, size, spare) for row in self._earlier.tolist()]
        self._placements = dict(zip(self._all_layers, placements, strict=True))
        self._held = {
            layer: held_by(grid.peers.rank, self._placements[layer]) for layer in self.layers
        }
        self.counts = np.zeros_like(self._earlier)
        self._here = np.zeros((len(self.layers), mixture.num_experts), np.int64)
        self._saved = time.monotonic()
        self._log()

    def held_in(self, layer: int) -> HeldExperts:
        """Return the experts of a layer that this rank has."""
        return self._held[layer]

    def count(self, chosen: npt.NDArray[np.int32]) -> None:
        """Count experts that were chosen for tokens, [tokens, layers of this rank * top_k]."""
        num_layers, num_experts = self._here.shape
        per_layer = chosen.reshape(len(chosen), num_layers, -1)
        offsets = np.arange(num_layers)[:, None] * num_experts
        flat = np.bincount((per_layer + offsets).reshape(-1), minlength=self._here.size)
        self._here += flat.reshape(self._here.shape)

    def forget(self) -> None:
        """Set the counts of this rank to 0, after steps that warmed up."""
        self._here[:] = 0

    def gather(self) -> None:
        """Add up the counts of all stages in `counts`.  All ranks call it if it `is_divided`."""
        indices = [self._all_layers.index(layer) for layer in self.layers]
        self.counts[indices] = self._here
        if self.is_divided:
            everyone, width = self._grid.everyone, self._grid.peers.size
            gathered = everyone.gather(self.counts.reshape(-1))[::width]
            # Each stage knows its layers; of others it has what it gathered before, which is less.
            self.counts[:] = gathered.max(0).reshape(self.counts.shape)

    def loads(self) -> tuple[int, int]:
        """Return the sum of `counts`, and the sum over layers of the most loaded rank's."""
        return _loads(self._placements, self.counts, self._all_layers, self._grid.peers.size)

    def save_at_intervals(self) -> None:
        """Write the file if it was last written `SAVE_SECONDS` ago."""
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the counts to the file, with half of those that it had at the start."""
        self._saved = time.monotonic()
        if not self._path or not self.counts.any():
            return
        counts = np.minimum(self.counts + self._earlier // 2, MAX_COUNT).tolist()
        content = CountsFile(dict(zip(self._all_layers, counts, strict=True)))
        try:
            write_atomically(Path(self._path), msgspec.json.encode(content).decode())
        except OSError as error:
            log.warning("counts of experts cannot be written to %s: %s", self._path, error)

    def _read_earlier(self, num_experts: int) -> Counts:
        """Return the counts in the file, which rank 0 reads; zeros without a file."""
        counts = np.zeros((len(self._all_layers), num_experts), np.int64)
        everyone = self._grid.everyone
        if not self._path:
            return counts
        if everyone.rank == 0:
            rows = read_counts(Path(self._path), self._all_layers, num_experts)
            counts[:] = [rows[layer] for layer in self._all_layers] if rows else 0
        counts[:] = everyone.gather(counts.reshape(-1))[0].reshape(counts.shape)
        return counts

    def _log(self) -> None:
        if self._grid.everyone.rank or not self._earlier.any():
            return
        size = self._grid.peers.size
        total, peak = _loads(self._placements, self._earlier, self._all_layers, size)
        copies = sum(len(ranks) - 1 for rows in self._placements.values() for ranks in rows)
        log.info(
            "experts are placed by the tokens that they got, with %d copies: by these the most "
            "loaded rank of a layer has %.2f times the mean", copies, peak * size / max(1, total),
        )  # fmt: skip


def gather_counts(runner: Any, experts: RankExperts) -> None:
    """Gather the counts of all ranks, after notices between stages that are still on their way."""
    if hasattr(runner, "settle"):
        runner.settle()
    experts.gather()


def experts_of(runner: object) -> RankExperts | None:
    """Return the experts of a rank's runner, None for one that holds parts of all, or none."""
    experts: RankExperts | None = getattr(runner, "experts", None)
    return experts


def _loads(
    placements: Mapping[int, list[tuple[int, ...]]], counts: Counts, layers: list[int], size: int
) -> tuple[int, int]:
    rows = zip(layers, counts.tolist(), strict=True)
    peaks = [rank_loads(placements[layer], row, size).max() for layer, row in rows]
    return int(counts.sum()), round(sum(peaks))


def read_counts(path: Path, layers: list[int], num_experts: int) -> dict[int, list[int]]:
    """Return the counts in a file, by layer; empty if there is no file yet.

    Raises StartError for a file of another model, one that is damaged, and a missing directory.
    """
    if not path.exists() and path.absolute().parent.is_dir():
        return {}
    try:
        if path.stat().st_size > MAX_FILE:
            raise StartError(f"expert_counts is {str(path)!r}, which has over {MAX_FILE} bytes")
        content = msgspec.json.decode(path.read_bytes(), type=CountsFile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StartError(
            f"expert_counts is {str(path)!r}, which cannot be read: {error}; expected a file that "
            "an earlier run has written, or a new name in a directory that exists"
        ) from error
    rows = content.layers
    if sorted(rows) != layers or any(len(row) != num_experts for row in rows.values()):
        raise StartError(
            f"expert_counts is {str(path)!r}, which is of another model: expected "
            f"{num_experts} numbers for each of the layers {layers[0]} to {layers[-1]} that have "
            "experts; give another file"
        )
    if not all(0 <= count <= MAX_COUNT for row in rows.values() for count in row):
        raise StartError(
            f"expert_counts is {str(path)!r}, which has a number that is not 0 to {MAX_COUNT}"
        )
    return rows
