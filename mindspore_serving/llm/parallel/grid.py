"""The groups of a rank: ranks that share layers, and ranks of which each has layers of its own.

Ranks are numbered stage after stage; within one they share its layers.  Knows no runtime.
"""

from dataclasses import dataclass

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.group import Group
from mindspore_serving.llm.parallel.links import Links


@dataclass(frozen=True, slots=True)
class Grid:
    """`peers` share this rank's layers; `stages` are one rank of each stage, in their order.  A
    group of this rank alone has size 1."""

    everyone: Group
    peers: Group
    stages: Group


def open_grid(links: Links, config: EngineConfig) -> Grid:
    """For the ranks of `config`, which are as many as `links` connect."""
    width = config.tensor_parallel
    stage, place = divmod(links.rank, width)
    return Grid(
        Group(links),
        Group(links, range(stage * width, (stage + 1) * width), way=1),
        Group(links, range(place, links.size, width), way=2),
    )
