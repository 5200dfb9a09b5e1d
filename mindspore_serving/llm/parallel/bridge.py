"""The bridge of a machine: carries notices between its ranks and those of other machines.

Each rank of this machine has a socket for each rank elsewhere, of which the bridge has the other
end.  Flow control is that of the ranks: a ring sends at most two arrays before one is released.
Knows no model.
"""

import asyncio
import socket
from collections.abc import Mapping

import numpy as np

from mindspore_serving.core.placement import ranks_of
from mindspore_serving.llm.parallel.bridge_messages import Beats
from mindspore_serving.llm.parallel.links import (
    BEAT_SECONDS,
    NUM_REGIONS,
    PART_BYTES,
    TAG,
    Bytes,
    RankMemory,
)
from mindspore_serving.llm.parallel.peer import Notice, Peer

SILENCE_SECONDS = 10.0  # without anything from a machine after which it is lost

Ends = Mapping[tuple[int, int], socket.socket]
"""Ends of sockets by the rank of this machine and the rank elsewhere that they connect."""


class Bridge:
    """Bridge of machine number `machine`, on the running event loop.

    Args:
        machine: the number of this machine.
        counts: the number of ranks of each machine.
        memory: what the ranks of this machine share.
        ends: of all pairs of a rank of this machine and another one.
        peers: connections by machine.
    """

    def __init__(
        self,
        machine: int,
        counts: tuple[int, ...],
        memory: RankMemory,
        ends: Ends,
        peers: Mapping[int, Peer],
    ) -> None:
        self._memory, self._ends, self._peers = memory, ends, peers
        self._ranks = {number: ranks_of(counts, number) for number in range(len(counts))}
        self._machine = machine
        machines = {rank: number for number, ranks in self._ranks.items() for rank in ranks}
        loop = asyncio.get_running_loop()
        for (source, target), end in ends.items():
            end.setblocking(False)
            peer = peers[machines[target]]
            loop.add_reader(end, self._carry, source, target, end, peer)

    def space(self, peer: Peer, notice: Notice) -> Bytes:
        """Return where the array of a notice goes.  Raises ValueError for an invalid notice."""
        is_known = (notice.target, notice.source) in self._ends
        if not is_known or notice.source not in self._ranks[peer.machine]:
            raise ValueError(f"a notice of rank {notice.source} to rank {notice.target}")
        if notice.region >= NUM_REGIONS or notice.num_bytes > PART_BYTES:
            raise ValueError(f"{notice.num_bytes} bytes in region {notice.region}")
        return self._part(notice)

    def deliver(self, notice: Notice) -> None:
        """Pass a notice to its rank.  Raises ValueError if that has unread ones."""
        tag = TAG.pack(notice.step, notice.region, notice.number, notice.num_bytes)
        try:
            self._ends[notice.target, notice.source].send(tag)
        except BlockingIOError:
            raise ValueError(f"too many notices to rank {notice.target}") from None
        except OSError:
            return  # the rank has ended, which its group will report

    def take_beats(self, peer: Peer, beats: Beats) -> None:
        """Write the heartbeats of another machine.  Raises ValueError for a wrong number."""
        ranks = self._ranks[peer.machine]
        if len(beats.counts) != len(ranks):
            raise ValueError(f"heartbeats of {len(beats.counts)} ranks, expected {len(ranks)}")
        self._memory.beats[ranks.start : ranks.stop] = np.array(beats.counts, np.uint64)

    async def keep_alive(self) -> int:
        """Exchange heartbeats; return the machine that has sent nothing for SILENCE_SECONDS."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        counts = {peer: peer.num_received for peer in self._peers.values()}
        silent_for = dict.fromkeys(counts, 0.0)
        while True:
            ranks = self._ranks[self._machine]
            beats = Beats(self._memory.beats[ranks.start : ranks.stop].tolist())
            for peer in counts:
                peer.send(beats)
            await asyncio.sleep(BEAT_SECONDS)
            # If this process was stopped, the others are not to blame.
            elapsed = min(loop.time() - last, 2 * BEAT_SECONDS)
            last = loop.time()
            for peer, count in counts.items():
                silent_for[peer] += elapsed
                if peer.num_received != count:
                    counts[peer], silent_for[peer] = peer.num_received, 0.0
                elif silent_for[peer] >= SILENCE_SECONDS:
                    return peer.machine

    def close(self) -> None:
        """Close the ends, which tells the ranks of this machine that the others are lost."""
        loop = asyncio.get_running_loop()
        for end in self._ends.values():
            loop.remove_reader(end)
            end.close()

    def _part(self, notice: Notice) -> Bytes:
        half = notice.number % 2
        part: Bytes = self._memory.parts[notice.region, half, notice.source, : notice.num_bytes]
        return part

    def _carry(self, source: int, target: int, end: socket.socket, peer: Peer) -> None:
        try:
            tag = end.recv(TAG.size)
        except BlockingIOError:
            return
        except OSError:
            tag = b""
        if not tag:  # the rank has ended
            asyncio.get_running_loop().remove_reader(end)
            return
        step, region, number, num_bytes = TAG.unpack(tag)
        notice = Notice(source, target, step, region, number, num_bytes)
        peer.send_notice(notice, self._part(notice))
