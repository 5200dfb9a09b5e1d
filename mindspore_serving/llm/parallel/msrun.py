"""Ranks that MindSpore's `msrun` has started: their roles, and how rank 0 finds them.

msrun runs one command as every rank, and once as the scheduler by which MindSpore's ranks meet; it
tells each its role by variables.  Rank 0 serves, all others listen.  Rank 0 connects twice to each:
its server, for as long as it lives, and its worker, which passes what `start_ranks` passes to
children.  The sockets are abstract: they have no file, and each side accepts only the same user.
All ranks are on one machine, as they share memory.
"""

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from mindspore_serving.aio import readable
from mindspore_serving.errors import StartError

MEET_SECONDS = 120.0  # timeout for all processes of msrun to listen
LOOK_SECONDS = 0.1  # interval of attempts
SCHEDULER = -1  # in place of a rank
_CREDENTIALS = struct.Struct("3i")  # process, user, group
# As this process was started: a connection to other ranks sets the same variables.
VARIABLES: Mapping[str, str] = {k: v for k, v in os.environ.items() if k.startswith("MS_")}


@dataclass(frozen=True, slots=True)
class MsrunRole:
    """Role of a process of msrun: rank, or SCHEDULER, of `size`, and where the scheduler is."""

    rank: int
    size: int
    host: str
    port: int

    def address(self, rank: int) -> str:
        """Return the address at which a process listens."""
        name = "scheduler" if rank == SCHEDULER else f"rank-{rank}"
        return f"\0mindspore-serving-msrun-{os.getuid()}-{self.host}-{self.port}-{name}"


def read_role() -> MsrunRole | None:
    """Return what msrun tells this process, None if it has not started it.

    Raises StartError if a variable is missing or wrong.
    """
    role = VARIABLES.get("MS_ROLE")
    if role is None:
        return None
    if role not in ("MS_WORKER", "MS_SCHED"):
        raise StartError(f"MS_ROLE is {role!r}, expected MS_WORKER or MS_SCHED: start by msrun")
    size = _number("MS_WORKER_NUM")
    rank = SCHEDULER if role == "MS_SCHED" else _number("MS_NODE_ID")
    if rank >= size:
        raise StartError(f"MS_NODE_ID is {rank}, but MS_WORKER_NUM {size}: start by msrun")
    return MsrunRole(rank, size, VARIABLES.get("MS_SCHED_HOST", ""), _number("MS_SCHED_PORT"))


def _number(name: str) -> int:
    value = VARIABLES.get(name, "")
    if not value.isdecimal():
        raise StartError(
            f"MS_ROLE is set, as by msrun, but {name} is {value!r}, expected a number: start by "
            "msrun, with all ranks on one machine, or unset MS_ROLE"
        )
    return int(value)


def check_size(num_ranks: int) -> None:
    """Raise StartError if msrun has started another number of ranks, or this one does not serve.

    Without MS_NODE_ID the variables are those of agents, which connect by themselves.
    """
    role = read_role() if "MS_NODE_ID" in VARIABLES else None
    if role is None:
        return
    if role.rank != 0:
        raise StartError(
            f"this is rank {role.rank} of msrun: only `mindspore-serving serve` runs over its "
            "ranks; start other programs without msrun"
        )
    if role.size != num_ranks:
        raise StartError(
            f"msrun has started {role.size} ranks, but tensor_parallel * pipeline_parallel is "
            f"{num_ranks}: make them equal"
        )


@contextmanager
def attached(role: MsrunRole) -> Iterator[None]:
    """Hold connections to all other processes of `role`, which end when these are closed.

    Raises StartError if one of them does not listen within MEET_SECONDS.
    """
    with ExitStack() as connected:
        for rank in (SCHEDULER, *range(1, role.size)):
            connected.enter_context(connect(role, rank))
        yield


def connect(role: MsrunRole, rank: int) -> socket.socket:
    """Connect to a process of `role` when it listens.  Raises StartError after MEET_SECONDS."""
    deadline = time.monotonic() + MEET_SECONDS
    while True:
        stream = socket.socket(socket.AF_UNIX)
        try:
            stream.connect(role.address(rank))
            check_user(stream)
            return stream
        except (OSError, StartError) as error:
            stream.close()
            if time.monotonic() >= deadline or isinstance(error, StartError):
                name = "the scheduler" if rank == SCHEDULER else f"rank {rank} of {role.size}"
                raise StartError(
                    f"{name} cannot be reached: {error}; start all ranks on this machine, by msrun "
                    f"--worker_num={role.size} --local_worker_num={role.size}"
                ) from error
        time.sleep(LOOK_SECONDS)


def check_user(stream: socket.socket) -> int:
    """Return the process at the other end.  Raises StartError if it is another user's."""
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    if user != os.getuid():
        raise StartError(f"process {process} belongs to another user")
    return int(process)


class RankListener:
    """Socket at which a process other than rank 0 waits for rank 0."""

    def __init__(self, role: MsrunRole) -> None:
        """Listen.  Raises StartError if another process does, as of an earlier start."""
        self._size = role.size
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(role.address(role.rank))
        except OSError as error:
            self._socket.close()
            raise StartError(
                f"rank {role.rank} of port {role.port} already waits: {error}; end ranks of an "
                "earlier start, or give msrun another --master_port"
            ) from error
        self._socket.listen()

    def accept(self, other: socket.socket | None = None) -> socket.socket:
        """Return the next connection of this user.

        Raises EOFError if `other` is closed meanwhile, and StartError without `other` after
        MEET_SECONDS.
        """
        waited = [self._socket, *([] if other is None else [other])]
        while True:
            ready, _, _ = select.select(waited, [], [], None if other else MEET_SECONDS)
            if not ready:
                raise StartError(f"rank 0 has not connected within {MEET_SECONDS:g} s: see its log")
            if other in ready:
                raise EOFError
            stream, _ = self._socket.accept()
            with suppress(StartError):
                check_user(stream)
                return stream
            stream.close()

    def receive(self, stream: socket.socket, rank: int) -> tuple[int, dict[int, socket.socket]]:
        """Return the memory of the ranks, and sockets to other ranks, that `pass_to` has sent."""
        _, descriptors, _, _ = socket.recv_fds(stream, 1, self._size)
        if len(descriptors) != self._size:
            raise EOFError
        numbers = (other for other in range(self._size) if other != rank)
        sockets = (socket.socket(fileno=descriptor) for descriptor in descriptors[1:])
        return descriptors[0], dict(zip(numbers, sockets, strict=True))

    def close(self) -> None:
        self._socket.close()


def pass_to(stream: socket.socket, memory: int, peers: Mapping[int, socket.socket]) -> None:
    """Send a rank its memory, and its sockets to the other ranks in their order."""
    descriptors: Sequence[int] = [memory, *(peers[rank].fileno() for rank in sorted(peers))]
    socket.send_fds(stream, [b"\0"], descriptors)


class JoinedProcess:
    """A rank that msrun has started, as a process of a group; its log is msrun's."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    async def wait(self) -> int:
        """Wait until it has ended; return 0, as its status is known to msrun alone."""
        await readable(self._pidfd)
        return 0

    def kill(self) -> None:
        """Ask it to end, which it does at once; SIGKILL would be a failure for msrun."""
        with suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def log_tail(self) -> str:
        return ""
