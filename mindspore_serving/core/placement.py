"""Placement of a model's ranks on machines, links of workers, and the credentials of such groups.

Pure data: chosen by the master, used by a worker and the hosts of its ranks.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GroupCredentials:
    """Certificate and key, in PEM, of one group of machines, which accept no other certificate."""

    certificate: bytes
    private_key: bytes = field(repr=False)

    @property
    def pem(self) -> tuple[bytes, bytes]:
        return self.certificate, self.private_key


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Settings of a worker whose servable has workers on several machines that exchange blocks.

    Args:
        machine: name of its machine, "" for the server's.
        listen_host: address of its machine at which it listens for the others.
        server_host: address of the server's machine, for the others.
        credentials: of the connections between the workers.
    """

    machine: str
    listen_host: str
    server_host: str
    credentials: GroupCredentials


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Machines of the ranks of one model; the first is the worker's.

    Args:
        counts: number of ranks on each machine; ranks are numbered machine after machine.
        num_stages: stages of the model, fewer than requested if machines were lost.
        names: names of the machines.
        addresses: HOST:PORT of the host of each other machine.
        speeds: bytes of weights a second that each other machine has measured.
        credentials: of the connections between them.
    """

    counts: tuple[int, ...]
    num_stages: int
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    speeds: tuple[float, ...]
    credentials: GroupCredentials

    def ranks_of(self, machine: int) -> range:
        """Return the ranks on a machine."""
        return ranks_of(self.counts, machine)


def ranks_of(counts: tuple[int, ...], machine: int) -> range:
    """Return the ranks on a machine, from the number of ranks on each."""
    first = sum(counts[:machine])
    return range(first, first + counts[machine])
