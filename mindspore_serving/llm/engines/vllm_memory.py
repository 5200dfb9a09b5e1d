"""Share of a machine's memory that vLLM takes on a CPU, by what is free on each NUMA node.

vLLM itself takes 92 % of a node, and does not start where less is free.  Imports nothing of it.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.main_memory import read_group

OPTION = "gpu_memory_utilization"  # vLLM's name of the share, on CPUs too
_CACHE_OPTION = "kv_cache_memory_bytes"  # in place of it
_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"  # the same
_WORKERS = "tensor_parallel_size"
_DEFAULT = 0.92  # vLLM's own
_OF_FREE = 0.9  # vLLM checks the free memory again later, when it may be less
_FREE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")  # as vLLM counts


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Bytes of a NUMA node."""

    total: int
    free: int


def with_share(arguments: Mapping[str, Any], root: Path = Path("/")) -> dict[str, Any]:
    """Return vLLM's `arguments` with the share of memory to take, unless the operator has set it.

    Raises StartError if there is too little.
    """
    if arguments.keys() & {OPTION, _CACHE_OPTION} or os.environ.get(_CACHE_VARIABLE):
        return dict(arguments)
    nodes = read_nodes(root)
    share = choose_share(nodes, arguments.get(_WORKERS, 1))
    log.warning(
        "engine vllm takes %d %% of the memory, as %d %% is free; --engine-option %s=SHARE sets it",
        round(100 * share), 100 * min(node.free / node.total for node in nodes), OPTION,
    )  # fmt: skip
    return {**arguments, OPTION: share}


def read_nodes(root: Path = Path("/")) -> list[NodeMemory]:
    """Return the memory of each node, within a container's limit.  Raises StartError for none."""
    files = sorted((root / "sys/devices/system/node").glob("node[0-9]*/meminfo"))
    nodes = [_read(file) for file in files or [root / "proc/meminfo"]]
    group = read_group(root)
    with_memory = []
    for node in nodes:
        if group is not None and group.limit < node.total:
            node = NodeMemory(group.limit, max(0, min(node.free, group.limit - group.used)))
        if node.total:  # a node may have processors only
            with_memory.append(node)
    if not with_memory:
        raise StartError(f"{root} shows no memory; set --engine-option {OPTION}=SHARE")
    return with_memory


def choose_share(nodes: Sequence[NodeMemory], num_workers: int = 1) -> float:
    """Return the share of each node that vLLM is to take, in hundredths, at most its own default.

    Each of `num_workers` takes such a share.  Raises StartError if less than a hundredth is free.
    """
    shares = [node.free / node.total for node in nodes]
    on_each = math.ceil(num_workers / len(shares))
    share = math.floor(100 * min(_DEFAULT, _OF_FREE * min(shares)) / on_each) / 100
    if share <= 0:
        raise StartError(
            f"engine vllm cannot start: only {min(shares):.1%} of the memory is free; end other "
            "processes"
        )
    return share


def _read(path: Path) -> NodeMemory:
    """Return the memory by lines such as "Node 0 MemTotal: 97421888 kB", or without the node."""
    sizes = dict(_sizes(path.read_text().splitlines()))
    return NodeMemory(sizes.get("MemTotal", 0), sum(sizes.get(name, 0) for name in _FREE))


def _sizes(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        name, _, size = line.partition(":")
        if size.split()[:1] and size.split()[0].isdigit():
            yield name.split()[-1], int(size.split()[0]) * 1024
