"""Placement of the ranks of this process's model, set before the model is opened.

One process opens one model over machines: a worker, which the master has placed.
"""

from dataclasses import replace

from mindspore_serving.core.placement import RankPlacement
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig

_placed: list[tuple[RankPlacement, str]] = []  # at most one


def set_placement(placement: RankPlacement, root: str, config: EngineConfig) -> EngineConfig:
    """Set the placement and return the options of the model on these machines.

    `root` is the directory of servables.  Raises StartError if the options have other ranks.
    """
    config = replace(config, pipeline_parallel=placement.num_stages)
    if config.num_ranks != sum(placement.counts):
        raise StartError(
            f"the model has {config.num_ranks} ranks, but {sum(placement.counts)} were placed on "
            "machines: give tensor_parallel and pipeline_parallel as numbers"
        )
    _placed[:] = [(placement, root)] if placement.addresses else []
    return config


def read_placement() -> tuple[RankPlacement, str] | None:
    """Return the placement and the directory of servables; None if all ranks are here."""
    return _placed[0] if _placed else None
