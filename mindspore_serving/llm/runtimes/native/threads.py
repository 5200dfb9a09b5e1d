"""Threads that compute plans of kernels together: the caller's, and one per further physical core.

    team = KernelThreads()
    plan = KernelPlan([(address, num_chunks, arguments), ...])
    team.run(plan)

A record's chunks are taken one by one, and the next record begins when all are computed (`team`).
Compiled code runs a plan without Python by `run_address` with `arguments`.  If a chunk of another
thread stayed unfinished for long, because other processes have its core, the caller computes alone
for some plans, then tries again.  Threads of a team that is not used sleep.
"""

import ctypes
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.native.kernels.compiler import Compiler, compiler
from mindspore_serving.llm.runtimes.native.kernels.team import (
    LINE,
    MAX_CHUNKS,
    RECORD_BYTES,
    SHARED_BYTES,
    SLEEP,
    MemberArgument,
    Shared,
    member_body,
    run_body,
)

Integers = npt.NDArray[np.int64]
KernelRecord = tuple[int, int, Integers]  # address of a kernel, its number of chunks, its arguments

SPINS = 2000  # about 0.1 ms
FIRST_PAUSE, LONGEST_PAUSE = 8, 512  # plans that the caller computes alone after a stall
_TASK = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def physical_cores() -> list[int]:
    """Return one logical processor of each physical core that this process may use."""
    firsts: dict[str, int] = {}
    for number in sorted(os.sched_getaffinity(0)):
        try:
            siblings = Path(_TOPOLOGY.format(number)).read_text()
        except OSError:
            siblings = str(number)
        firsts.setdefault(siblings, number)
    return list(firsts.values())


class KernelPlan:
    """Records of a plan in memory, and the arrays that they refer to."""

    def __init__(self, records: Iterable[KernelRecord]) -> None:
        self._kept = list(records)
        numbers = np.zeros((len(self._kept) + 1, RECORD_BYTES // 8), np.int64)
        for row, (kernel, chunks, arguments) in zip(numbers, self._kept, strict=False):
            if not kernel or not 0 < chunks <= MAX_CHUNKS:
                raise StartError(
                    f"a plan has kernel {kernel} with {chunks} chunks, expected an address and "
                    f"1 to {MAX_CHUNKS}"
                )
            row[:] = kernel, chunks, arguments.ctypes.data
        self._numbers = numbers

    @property
    def address(self) -> int:
        """Address of the first record."""
        return int(self._numbers.ctypes.data)


class KernelThreads:
    """Threads that compute plans; one plan at a time, from one thread.

    Args:
        num_threads: with the caller's; default one for each physical core of the affinity mask.
        pins: keep each further thread on a core of its own, for machines that do nothing else: on
            busy ones the median pass was two to three times as long with it.
        using: compiler of the threads' code.
    """

    def __init__(
        self, num_threads: int | None = None, *, pins: bool = False, using: Compiler | None = None
    ) -> None:
        cores = physical_cores()
        self.num_threads = num_threads or len(cores)
        using = using or compiler()
        self.run_address = using.address("team_run", run_body)
        self._run = _TASK(self.run_address)
        member = _TASK(using.address("team_member", member_body))
        self._memory = np.zeros(SHARED_BYTES + LINE, np.uint8)
        self._shared = self._memory.ctypes.data + -self._memory.ctypes.data % LINE
        for name, value in (
            (Shared.SPINS, SPINS),
            (Shared.THREADS, self.num_threads),
            (Shared.TIMEOUT + 8, SLEEP),
        ):
            self._number(name).value = value
        self._stalls, self._pause, self._wait = 0, FIRST_PAUSE, 0
        self.arguments = self._arguments(0)
        self._members = [
            threading.Thread(
                target=_member,
                args=(member, self._arguments(index), cores[index % len(cores)] if pins else None),
                name=f"native-{index}",
                daemon=True,
            )
            for index in range(1, self.num_threads)
        ]
        for thread in self._members:
            thread.start()

    def run(self, plan: KernelPlan) -> None:
        """Compute a plan; the GIL is free meanwhile."""
        self.arguments[MemberArgument.PLAN] = plan.address
        self._run(self.arguments.ctypes.data, 0)
        if self._members:
            self.adapt()

    def close(self) -> None:
        """End the threads; no plan may run."""
        self._number(Shared.STOPPED).value = 1
        for thread in self._members:
            thread.join()
        self._members.clear()

    @property
    def num_stalls(self) -> int:
        """Number of times that the caller slept because a chunk of another thread took long."""
        return self._number(Shared.STALLS).value

    def adapt(self) -> None:
        """Let the caller compute some plans alone after a stall, twice as many after the next.

        To be called after plans that compiled code ran.
        """
        stalls = self.num_stalls
        threads = self._number(Shared.THREADS)
        if threads.value == 1:
            self._wait -= 1
            if self._wait <= 0:
                threads.value, self._stalls = self.num_threads, stalls
        elif stalls > self._stalls:
            threads.value, self._wait = 1, self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._stalls = stalls
        elif self._pause > FIRST_PAUSE:
            self._wait += 1
            if self._wait > self._pause:
                self._pause, self._wait = FIRST_PAUSE, 0

    def _arguments(self, index: int) -> Integers:
        numbers = np.zeros(len(MemberArgument), np.int64)
        numbers[MemberArgument.SHARED], numbers[MemberArgument.INDEX] = self._shared, index
        return numbers

    def _number(self, offset: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self._shared + offset)


def _member(member: "ctypes._FuncPointer", arguments: Integers, core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})  # of this thread alone
    member(arguments.ctypes.data, 0)
