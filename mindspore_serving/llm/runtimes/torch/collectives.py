"""Sums and parts of logits of ranks with a CUDA device each, by torch.distributed.

Ranks on a CPU exchange arrays through memory instead (`parallel.exchange`).  Knows no definition.
"""

import os
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import distributed
from torch.nn import functional

from mindspore_serving.errors import StartError
from mindspore_serving.llm.parallel.exchange import RankExchange
from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.links import Links
from mindspore_serving.llm.step import RunnerLost

BACKENDS = {"cuda": "nccl"}  # by the type of device; other devices exchange through memory
TIMEOUT = timedelta(seconds=120)  # for a rank to take part, which may compile kernels before
MAX_NUMBER = 2**31  # larger than ids of processes and descriptors
LOCAL = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # interfaces that backends listen at


class DeviceExchange:
    """Collective operations on tensors of ranks that share every layer, by one process group.

    `group` and `exchange` are those of these ranks; all ranks call the same operations.
    """

    def __init__(
        self, group: RankGroup, exchange: RankExchange, vocab_size: int, device: str
    ) -> None:
        """Join the ranks.  Raises StartError if they cannot be joined."""
        if distributed.is_initialized():
            raise StartError(
                "this process has ranks on CUDA devices already: close their LLM, or open the "
                "other one in a new process"
            )
        self._group, self._rows, self._vocab_size = group, exchange.all_rows, vocab_size
        for name in LOCAL:
            os.environ.setdefault(name, "lo")
        # Ranks find each other by memory of the first one, which needs no name in a directory.
        is_first = group.rank == 0
        self._memory = os.memfd_create("collectives", os.MFD_CLOEXEC) if is_first else -1
        numbers = (os.getpid(), self._memory) if is_first else (MAX_NUMBER, MAX_NUMBER)
        process, descriptor = map(group.minimum, numbers)
        is_cuda = torch.device(device).type == "cuda"
        try:
            distributed.init_process_group(
                BACKENDS[torch.device(device).type],
                store=distributed.FileStore(f"/proc/{process}/fd/{descriptor}", group.size),
                rank=group.rank,
                world_size=group.size,
                timeout=TIMEOUT,
                device_id=torch.device(device) if is_cuda else None,
            )
        except RuntimeError as error:
            self._close_memory()
            raise StartError(f"ranks on {device} cannot be joined: {error}") from error
        self._event = torch.cuda.Event() if is_cuda else None

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of every rank's `x`, which may be overwritten."""
        total = x.contiguous()
        self._run(lambda: distributed.all_reduce(total))
        return total

    def gather(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] of every rank's rows; no rows on ranks other than 0."""
        if not len(logits):
            return logits.new_empty(0, self._vocab_size)
        width = max(rows.count for rows in self._rows)
        part = functional.pad(logits, (0, width - logits.shape[1]))
        is_first = self._group.rank == 0
        parts = [torch.empty_like(part) for _ in self._rows] if is_first else None
        self._run(lambda: distributed.gather(part, parts))
        if parts is None:
            return logits.new_empty(0, self._vocab_size)
        pairs = zip(parts, self._rows, strict=True)
        return torch.cat([part[:, : rows.count] for part, rows in pairs], 1)

    def wait(self) -> None:
        """Wait for the device, which waits for other ranks.  Raises RunnerLost if one is lost."""
        if self._event is not None:
            await_event(self._event, self._group.links)

    def close(self) -> None:
        """Leave the other ranks."""
        distributed.destroy_process_group()
        self._close_memory()

    def _close_memory(self) -> None:
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _run(self, collective: Callable[[], object]) -> None:
        self._group.links.has_exchanged = True  # an error from here on is not a refusal of the step
        try:
            collective()
        except RuntimeError as error:
            raise RunnerLost(f"ranks cannot exchange their results: {error}") from error


def await_event(event: torch.cuda.Event, links: Links) -> None:
    """Wait for what the device has been given.  Raises RunnerLost if a rank is lost meanwhile."""
    event.record()
    while not event.query():
        links.check()
        os.sched_yield()
