"""Which ranks a script starts agents for, and what each agent finds in its environment.

Decisions, but for `find_ip`, which asks the kernel which addresses are of this machine.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from mindspore_serving.distributed import rank_table
from mindspore_serving.distributed.rank_table import RankPlace
from mindspore_serving.errors import InvalidInputs

Files = tuple[tuple[str, ...], ...]
"""For each device of this machine its files: of sub-graphs, or of groups."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The arguments of `distributed.startup_agents`; paths are absolute."""

    address: str
    model_files: Files
    group_files: Files = ()
    start_port: int = 7000
    ip: str | None = None
    rank_start: int | None = None
    dec_key: bytes | None = field(default=None, repr=False)
    dec_mode: str = "AES-GCM"


def choose_ranks(ranks: Sequence[RankPlace], options: AgentOptions) -> list[RankPlace]:
    """The ranks of this machine: one for each device with model files.  Raises InvalidInputs."""
    first = options.rank_start or 0
    if first >= len(ranks):
        raise InvalidInputs(
            f"Parameter 'rank_start' cannot equal or larger than rank size {len(ranks)}."
        )
    ip = options.ip or find_ip(ranks)
    own = rank_table.on_machine(ranks, ip, first)
    if len(own) != len(options.model_files):
        raise InvalidInputs(
            f"Card count {len(own)} described rank table does not equal to model files size "
            f"{len(options.model_files)}, local machine ip: {ip}, first rank: {first}"
        )
    return own


def find_ip(ranks: Sequence[RankPlace]) -> str:
    """The first address of the rank table that is of this machine.  Raises InvalidInputs."""
    known = list(dict.fromkeys(rank.ip for rank in ranks))
    for ip in known:
        if is_local(ip):
            return ip
    raise InvalidInputs(
        f"Get local machine ip failed, rank table ips: {', '.join(known)}: none is of this "
        "machine, or give 'agent_ip' and 'rank_start'"
    )


def is_local(ip: str) -> bool:
    """Whether a socket can be bound to `ip` here."""
    with socket.socket() as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


def environment(
    rank: RankPlace, ranks: Sequence[RankPlace], table_path: str, groups: Sequence[str], port: int
) -> dict[str, str]:
    """The variables by which MindSpore's and PyTorch's collectives know the rank of a process.

    `port` is one that rank 0 may listen on, for PyTorch.
    """
    found = {
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
        found["PARA_GROUP_FILE"] = ";".join(groups)
    return found
