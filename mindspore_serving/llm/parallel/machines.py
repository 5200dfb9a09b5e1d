"""Placement of the ranks of this process's model, set before the model is opened.

One process opens one model over machines: a worker, which the master has placed.
"""

from collections.abc import Sequence
from dataclasses import replace

from mindspore_serving.core.placement import RankPlacement
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.speed import measure_speed

EVEN = 1.25  # times as fast as the slowest machine up to which all count as equally fast
_placed: list[tuple[RankPlacement, str]] = []  # at most one


def set_placement(
    placement: RankPlacement, root: str, config: EngineConfig, *, divides: bool
) -> EngineConfig:
    """Set the placement and return the options of the model on these machines.

    `root` is the directory of servables.  With `divides`, layers are divided by how fast the
    machines are, unless the options say how.  Raises StartError if the options have other ranks.
    """
    num_stages = placement.num_stages
    if num_stages != config.pipeline_parallel:
        config = replace(config, pipeline_parallel=num_stages, stage_layers="")
    if config.num_ranks != sum(placement.counts):
        raise StartError(
            f"the model has {config.num_ranks} ranks, but {sum(placement.counts)} were placed on "
            "machines: give tensor_parallel and pipeline_parallel as numbers"
        )
    if divides and placement.addresses and num_stages > 1 and not config.stage_layers:
        speeds = [measure_speed(), *placement.speeds]
        stages = [count // config.tensor_parallel for count in placement.counts]
        config = replace(config, stage_layers=layers_by_speed(speeds, stages))
    _placed[:] = [(placement, root)] if placement.addresses else []
    return config


def layers_by_speed(speeds: Sequence[float], stages: Sequence[int]) -> str:
    """Return the option `stage_layers` for machines with these speeds and numbers of stages.

    The stages of a machine share its speed.  "" if all stages are about as fast.
    """
    shares = [speed / count for speed, count in zip(speeds, stages, strict=True) if count]
    if max(shares) <= EVEN * min(shares):
        return ""
    numbers = [max(1, round(100 * share / sum(shares))) for share in shares]
    per_stage = zip(numbers, stages, strict=True)
    return ":".join(str(number) for number, count in per_stage for _ in range(count))


def read_placement() -> tuple[RankPlacement, str] | None:
    """Return the placement and the directory of servables; None if all ranks are here."""
    return _placed[0] if _placed else None
