"""Connections of a rank to all other ranks: a socket for each, and shared memory.

A rank that has ended closes its sockets; one that is stopped counts no heartbeats.  A rank that
waits for another looks at the heartbeats of all, as the other may wait for a third one.

For a rank on another machine a bridge is at the other end of the socket.  It sends the part of each
notice to the bridge of that machine, which writes it to its own memory before it passes the notice.
"""

import mmap
import os
import select
import socket
import struct
import threading
import time
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.step import RunnerLost

Bytes = npt.NDArray[np.uint8]

PART_BYTES = 4 << 20  # limit of a rank in one exchange; address space, not memory
NUM_REGIONS = 3  # for all ranks, for ranks that share layers, for ranks in a ring
BEAT_SECONDS = 0.25
CHECK_SECONDS = 1.0  # between two checks of heartbeats while waiting for a rank
NUM_SPINS = 200  # polls of a socket before sleeping on it, some 100 us
_LINE = 64  # bytes of a heartbeat, so that ranks do not write to the same cache line
TAG = struct.Struct("<QQQQ")
Tag: TypeAlias = tuple[int, ...]  # step, region, exchange, bytes


def create_memory(size: int) -> int:
    """Return the descriptor of memory for `size` ranks; the last of them frees it."""
    descriptor = os.memfd_create("ranks", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _header_bytes(size) + NUM_REGIONS * 2 * size * PART_BYTES)
    return descriptor


class RankMemory:
    """Memory that the ranks of a machine share: heartbeats and parts of all `size` ranks.

    `beats` are counters of heartbeats [rank], `parts` the arrays of exchanges
    [region, half, rank, bytes].
    """

    def __init__(self, descriptor: int, size: int) -> None:
        # | heartbeats, a cache line per rank | parts |
        shared = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
        head = _header_bytes(size)
        self.beats: npt.NDArray[np.uint64] = shared[: size * _LINE].view(np.uint64)[:: _LINE // 8]
        self.parts: Bytes = shared[head:].reshape(NUM_REGIONS, 2, size, PART_BYTES)


class Links:
    """Connections of one rank.  Used by one thread.

    Args:
        rank: its number.
        peers: a connected socket (SOCK_SEQPACKET) for every other rank.
        memory: the descriptor of `create_memory`.
        patience: seconds without a heartbeat after which a rank is lost; 0 waits for ever.
        num_local: number of ranks on this machine; 0 for all.
    """

    def __init__(
        self,
        rank: int,
        peers: dict[int, socket.socket],
        memory: int,
        patience: float = 0.0,
        num_local: int = 0,
    ) -> None:
        self.rank = rank
        self.size = len(peers) + 1
        self.num_local = num_local or self.size
        self.patience = patience
        self.has_exchanged = False  # since `begin`
        self.step = 0
        self._peers = peers
        shared = RankMemory(memory, self.size)
        self._beats, self.parts = shared.beats, shared.parts
        timeout = struct.pack("@ll", int(CHECK_SECONDS), 0)
        for peer in peers.values():
            peer.setblocking(True)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self._poll = select.poll()
        self._ranks = {peer.fileno(): rank for rank, peer in peers.items()}
        for descriptor in self._ranks:
            self._poll.register(descriptor, 0)  # its end alone
        self._silence = _Silence(rank, self._beats)
        self._is_closed = threading.Event()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def begin(self, step: int) -> None:
        """Begin step number `step`: exchanges from now on belong to it."""
        self.step = step
        self.has_exchanged = False

    def notify(self, rank: int, region: int, number: int, num_bytes: int) -> None:
        """Notify a rank that exchange `number`, of `num_bytes` in `region`, is done here.

        Raises RunnerLost naming the rank if it has ended.
        """
        self.has_exchanged = True
        try:
            self._peers[rank].send(TAG.pack(self.step, region, number, num_bytes))
        except OSError as error:
            raise RunnerLost(f"rank {rank} of {self.size} has ended") from error

    def wait_for(self, rank: int, region: int, number: int, num_bytes: int) -> None:
        """Wait for the notice of a rank that exchange `number`, of `num_bytes`, is done there.

        Raises RunnerLost naming the rank if it has ended, is stopped, or computes something else.
        """
        self.compare(rank, self.receive(rank), (self.step, region, number, num_bytes))

    def receive(self, rank: int) -> Tag:
        """Wait for the next notice of a rank; return its tag.

        Raises RunnerLost naming the rank if it has ended or is stopped.
        """
        self.has_exchanged = True
        return TAG.unpack(self._receive(rank, self._peers[rank]))

    def compare(self, rank: int, tag: Tag, expected: Tag) -> None:
        """Raise RunnerLost naming a rank whose `tag` is not the `expected` one."""
        if tag != expected:
            raise RunnerLost(
                f"rank {rank} of {self.size} is at (step, region, exchange, bytes) {tag}, but "
                f"rank {self.rank} is at {expected}"
            )

    def check(self) -> None:
        """Check that the other ranks live, while this one waits for something else.

        Raises RunnerLost naming a rank that has ended, or sends no heartbeat.
        """
        for descriptor, _ in self._poll.poll(0):
            raise RunnerLost(f"rank {self._ranks[descriptor]} of {self.size} has ended")
        self._silence.check(self.patience)

    def close(self) -> None:
        """End the heartbeats and disconnect."""
        self._is_closed.set()
        for peer in self._peers.values():
            peer.close()

    def _receive(self, rank: int, peer: socket.socket) -> bytes:
        """Return the next tag of `rank`."""
        for _ in range(NUM_SPINS):
            tag = self._read(rank, peer, socket.MSG_DONTWAIT)
            if tag is not None:
                return tag
            os.sched_yield()
        silence = _Silence(self.rank, self._beats)
        while (tag := self._read(rank, peer, 0)) is None:  # CHECK_SECONDS have passed
            silence.check(self.patience)
        return tag

    def _read(self, rank: int, peer: socket.socket, flags: int) -> bytes | None:
        """Return a tag, None if none has arrived."""
        try:
            tag = peer.recv(TAG.size, flags)
        except BlockingIOError:
            return None
        except OSError:  # it ended without reading all messages
            tag = b""
        if not tag:
            raise RunnerLost(f"rank {rank} of {self.size} has ended")
        return tag

    def _beat(self) -> None:
        while not self._is_closed.wait(BEAT_SECONDS):
            self._beats[self.rank] += np.uint64(1)


class _Silence:
    """Seconds for which each rank has sent no heartbeat, of those in which it was checked.

    All are checked, as a rank that is waited for may itself wait for a rank that is lost.
    """

    def __init__(self, rank: int, beats: npt.NDArray[np.uint64]) -> None:
        self._rank, self._beats = rank, beats
        self._last, self._time = beats.copy(), time.monotonic()
        self._seconds = np.zeros(len(beats))  # [rank]

    def check(self, patience: float) -> None:
        """Raise RunnerLost naming a rank that is silent for `patience` seconds; never with 0."""
        now, is_silent = time.monotonic(), self._last == self._beats
        is_silent[self._rank] = False
        # If this process was stopped, all may have been.
        elapsed = min(now - self._time, CHECK_SECONDS)
        self._seconds = (self._seconds + elapsed) * is_silent
        self._last, self._time = self._beats.copy(), now
        lost = int(self._seconds.argmax())
        if 0 < patience <= self._seconds[lost]:
            raise RunnerLost(
                f"rank {lost} of {len(self._beats)} sent no heartbeat for "
                f"{self._seconds[lost]:.0f} s"
            )


def _header_bytes(size: int) -> int:
    """Return the bytes before the parts: a line for the heartbeats of each rank, in whole pages."""
    return -(-size * _LINE // mmap.PAGESIZE) * mmap.PAGESIZE
