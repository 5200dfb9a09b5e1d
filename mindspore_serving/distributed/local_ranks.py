"""The ranks of this machine, for which a script starts agents, and the environment of each.

Decisions only, except for `find_ip`, which asks the kernel for the addresses of this machine.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from mindspore_serving.distributed import rank_table
from mindspore_serving.distributed.rank_table import RankEntry
from mindspore_serving.errors import InvalidInputs

Files = tuple[tuple[str, ...], ...]
"""The files of each device of this machine: of its sub-graphs, or of its groups."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Arguments of `distributed.startup_agents`, with absolute paths."""

    address: str
    model_files: Files
    group_files: Files = ()
    start_port: int = 7000
    ip: str | None = None
    rank_start: int | None = None
    dec_key: bytes | None = field(default=None, repr=False)
    dec_mode: str = "AES-GCM"


def choose_ranks(ranks: Sequence[RankEntry], options: AgentOptions) -> list[RankEntry]:
    """Return the ranks of this machine, one per device with model files.  Raises InvalidInputs."""
    first = options.rank_start or 0
    if first >= len(ranks):
        raise InvalidInputs(
            f"Parameter 'rank_start' cannot equal or larger than rank size {len(ranks)}."
        )
    ip = options.ip or find_ip(ranks)
    local_ranks = rank_table.on_machine(ranks, ip, first)
    if len(local_ranks) != len(options.model_files):
        raise InvalidInputs(
            f"Card count {len(local_ranks)} described rank table does not equal to model files "
            f"size {len(options.model_files)}, local machine ip: {ip}, first rank: {first}"
        )
    return local_ranks


def find_ip(ranks: Sequence[RankEntry]) -> str:
    """Return the first address in the rank table that this machine has.  Raises InvalidInputs."""
    known = list(dict.fromkeys(rank.ip for rank in ranks))
    for ip in known:
        if is_local(ip):
            return ip
    raise InvalidInputs(
        f"Get local machine ip failed, rank table ips: {', '.join(known)}: none is of this "
        "machine, or give 'agent_ip' and 'rank_start'"
    )


def is_local(ip: str) -> bool:
    """Return whether `ip` is an address of this machine: whether a socket can be bound to it."""
    with socket.socket() as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


def environment(
    rank: RankEntry, ranks: Sequence[RankEntry], table_path: str, groups: Sequence[str], port: int
) -> dict[str, str]:
    """Return the environment variables of a rank for collectives of MindSpore and PyTorch.

    `port` is the port on which rank 0 listens for PyTorch.
    """
    variables = {
        "RANK_ID": str(rank.number),
        "RANK_SIZE": str(len(ranks)),
        "DEVICE_ID": str(rank.device_id),
        "RANK_TABLE_FILE": table_path,
        "MS_ENABLE_HCCL": "1",
        "RANK": str(rank.number),
        "WORLD_SIZE": str(len(ranks)),
        "LOCAL_RANK": str(rank.device_id),
        "MASTER_ADDR": ranks[0].ip,
        "MASTER_PORT": str(port),
    }
    if groups:
        variables["PARA_GROUP_FILE"] = ";".join(groups)
    return variables
