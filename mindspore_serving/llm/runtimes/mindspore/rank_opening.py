"""Opening of one rank of a model: its device, its connection to the other ranks, its graphs.

On Ascend it is not verified on hardware.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from mindspore_serving.backends.ascend_installation import check_installation, visible_devices
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.group import Grid, RankGroup
from mindspore_serving.llm.parallel.part import RankPart, open_part, rank_options
from mindspore_serving.llm.parallel.shards import Shard
from mindspore_serving.llm.parallel.watching import WatchedThread
from mindspore_serving.llm.runtimes.mindir.library import ASCEND, CPU
from mindspore_serving.llm.runtimes.mindspore import cluster
from mindspore_serving.llm.runtimes.mindspore.opening import (
    cache_limits,
    compute_on,
    find_target,
    open_graphs,
)
from mindspore_serving.llm.runtimes.mindspore.primitives import broken_primitives
from mindspore_serving.llm.runtimes.mindspore.primitives.rules import RULES
from mindspore_serving.llm.runtimes.mindspore.ranks import (
    Collectives,
    RankGraphOps,
    RankGraphRunner,
)
from mindspore_serving.llm.runtimes.mindspore.runner import GraphTarget


def open_rank(directory: str | Path, config: EngineConfig, grid: Grid) -> RankGraphRunner:
    """Open the part of the model that this rank of `grid` holds, as `open_runner`.

    On Ascend a rank has the visible device of its number.
    """
    target = find_target(config)
    config = rank_options(config)
    part = open_part(directory, config, grid)
    _check_experts(part, config)
    everyone = grid.everyone
    num_local, size = everyone.links.num_local, everyone.size
    if num_local < size and (target.name == ASCEND or config.pipeline_parallel == 1):
        raise StartError(
            "rank_machines is over 1, but the runtime mindspore places only stages on several "
            "machines, and only on CPUs: give pipeline_parallel, or leave rank_machines out"
        )
    if target.name == ASCEND:
        check_installation()
        _check_devices(everyone.size)
        target = replace(target, composed=_agreed_primitives(config, everyone))
    thread = WatchedThread(everyone.links)
    return thread.call(lambda: _open_rank(part, target, config, thread))


def _open_rank(
    part: RankPart, target: GraphTarget, config: EngineConfig, thread: WatchedThread
) -> RankGraphRunner:
    """Open a rank in `thread`, where it may wait for ranks that have ended."""
    assert part.grid is not None
    everyone, peers = part.grid.everyone, part.grid.peers
    target = compute_on(target, config, everyone.rank)
    if part.exchange is not None:  # before there is a tensor
        cluster.connect(peers, everyone.rank)
    graphs = open_graphs(part, target, config)
    if part.exchange is not None:
        group = cluster.world_group(is_on_cpu=target.name == CPU)
        collectives = Collectives.of(
            group,
            Shard(peers.rank, peers.size),
            part.spec.vocab_size,
            splits_experts=not config.expert_parallel,
        )
        graphs.make_ops = partial(RankGraphOps, collectives=collectives)
    runner = RankGraphRunner(graphs, cache_limits(graphs, part, config), peers, thread)
    runner.warm_up()
    return runner


def _check_experts(part: RankPart, config: EngineConfig) -> None:
    """Raise StartError unless each rank has as many experts, as the graphs expect."""
    mixture, size = part.spec.mixture, config.tensor_parallel
    if config.expert_parallel and mixture is not None and mixture.num_experts % size:
        raise StartError(
            f"expert_parallel is set and tensor_parallel is {size}, expected a divisor of the "
            f"model's {mixture.num_experts} experts for the runtime mindspore"
        )


def _check_devices(num_ranks: int) -> None:
    """Raise StartError unless there are as many visible devices as ranks."""
    devices = visible_devices()
    if num_ranks > len(devices):
        raise StartError(
            f"the model is divided over {num_ranks} ranks, but this process sees "
            f"{len(devices)} Ascend devices: lower tensor_parallel, or name as many in "
            "ASCEND_RT_VISIBLE_DEVICES"
        )


def _agreed_primitives(config: EngineConfig, everyone: RankGroup) -> frozenset[str]:
    """Return the primitives that all ranks compose; rank 0 runs the self-test for all."""
    names, bits = sorted(RULES), (1 << 62) - 1
    if everyone.rank == 0:
        broken = broken_primitives(config.composed_primitives)
        bits = sum(1 << index for index, name in enumerate(names) if name in broken)
    bits = everyone.minimum(bits)
    return frozenset(name for index, name in enumerate(names) if bits >> index & 1)
