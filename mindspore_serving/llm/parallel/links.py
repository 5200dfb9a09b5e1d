"""What connects a rank to all others: a socket for each, and memory that all share.

A rank that has ended closes its sockets; one that is stopped counts no heartbeats.  Who waits for a
rank looks at the heartbeats of all: that one may wait for another.
"""

import mmap
import os
import socket
import struct
import threading

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.step import RunnerLost

Bytes = npt.NDArray[np.uint8]

PART_BYTES = 4 << 20  # of a rank in one exchange, at most; address space, not memory
WAYS = 3  # memories of their own: of all ranks, of those that share layers, of those in a ring
BEAT_SECONDS = 0.25
LOOK_SECONDS = 1.0  # between two looks at the heartbeats of a rank that is waited for
SPINS = 200  # looks at a socket before it is slept on, some 100 us
_LINE = 64  # bytes of a heartbeat, so that ranks do not write to the same cache line
_TAG = struct.Struct("<QQQ")  # step, exchange, bytes


def create_memory(size: int) -> int:
    """The descriptor of what `size` ranks share; the kernel frees it with the last of them."""
    descriptor = os.memfd_create("ranks", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _head(size) + WAYS * 2 * size * PART_BYTES)
    return descriptor


class Links:
    """Those of one rank.  Used by one thread.

    Args:
        rank: its number.
        peers: a connected socket (SOCK_SEQPACKET) for every other rank.
        memory: the descriptor of `create_memory`.
        patience: seconds without a heartbeat after which a rank is lost; 0 waits for ever.
    """

    def __init__(
        self, rank: int, peers: dict[int, socket.socket], memory: int, patience: float = 0.0
    ) -> None:
        self.rank = rank
        self.size = len(peers) + 1
        self.patience = patience
        self.has_exchanged = False  # since `begin`
        self._step = 0
        self._peers = peers
        whole = np.frombuffer(mmap.mmap(memory, 0), np.uint8)
        head = _head(self.size)
        self._beats = whole[: self.size * _LINE].view(np.uint64)[:: _LINE // 8]
        # [way, half, rank, bytes]
        self.parts: Bytes = whole[head:].reshape(WAYS, 2, self.size, PART_BYTES)
        timeout = struct.pack("@ll", int(LOOK_SECONDS), 0)
        for peer in peers.values():
            peer.setblocking(True)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self._is_closed = threading.Event()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def begin(self, step: int) -> None:
        """What is exchanged from now on is of step number `step`."""
        self._step = step
        self.has_exchanged = False

    def tell(self, rank: int, number: int, num_bytes: int) -> None:
        """Say to one rank that exchange `number`, of `num_bytes`, is done here.

        Raises RunnerLost naming the rank if it has ended.
        """
        self.has_exchanged = True
        try:
            self._peers[rank].send(_TAG.pack(self._step, number, num_bytes))
        except OSError as error:
            raise RunnerLost(f"rank {rank} of {self.size} has ended") from error

    def hear(self, rank: int, number: int, num_bytes: int) -> None:
        """Wait until one rank has said so.

        Raises RunnerLost naming the rank if it has ended, is stopped, or computes something else.
        """
        self.has_exchanged = True
        tag = (self._step, number, num_bytes)
        found = _TAG.unpack(self._receive(rank, self._peers[rank]))
        if found != tag:
            raise RunnerLost(
                f"rank {rank} of {self.size} is at (step, exchange, bytes) {found} where rank "
                f"{self.rank} is at {tag}"
            )

    def close(self) -> None:
        """End the heartbeats and leave the others."""
        self._is_closed.set()
        for peer in self._peers.values():
            peer.close()

    def _receive(self, rank: int, peer: socket.socket) -> bytes:
        """The next tag of `rank`."""
        for _ in range(SPINS):
            tag = self._read(rank, peer, socket.MSG_DONTWAIT)
            if tag is not None:
                return tag
            os.sched_yield()
        beats, silent = self._beats.copy(), np.zeros(self.size)  # [rank]
        while (tag := self._read(rank, peer, 0)) is None:  # LOOK_SECONDS have passed
            # Of all ranks, as this one may wait for another that is lost.
            is_silent = self._beats == beats
            is_silent[self.rank] = False
            silent, beats = (silent + LOOK_SECONDS) * is_silent, self._beats.copy()
            lost = int(silent.argmax())
            if 0 < self.patience <= silent[lost]:
                text = f"gave no heartbeat for {silent[lost]:g} s"
                raise RunnerLost(f"rank {lost} of {self.size} {text}")
        return tag

    def _read(self, rank: int, peer: socket.socket, flags: int) -> bytes | None:
        """None if nothing has come."""
        try:
            tag = peer.recv(_TAG.size, flags)
        except BlockingIOError:
            return None
        except OSError:  # it had not read all that was sent
            tag = b""
        if not tag:
            raise RunnerLost(f"rank {rank} of {self.size} has ended")
        return tag

    def _beat(self) -> None:
        while not self._is_closed.wait(BEAT_SECONDS):
            self._beats[self.rank] += np.uint64(1)


def _head(size: int) -> int:
    """Bytes before the parts: a line for the heartbeats of each rank, in whole pages."""
    return -(-size * _LINE // mmap.PAGESIZE) * mmap.PAGESIZE
