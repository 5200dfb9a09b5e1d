"""Watch the memory of the machine, and have the prefix cache give back its own when it is short.

`memory_target` decides; this reads the numbers, and passes targets to the engine between steps.
"""

import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.cache_budget import CacheBudget
from mindspore_serving.llm.runtimes.main_memory import ROOT, MainMemory, read_main_memory
from mindspore_serving.llm.runtimes.pages import trim
from mindspore_serving.llm.serving.engine_loop import Loop
from mindspore_serving.llm.serving.memory_target import MemoryTarget, decide

SECONDS = 1.0  # between two readings
RELEASED_AT_ONCE = 64 << 20  # bytes between two steps, which takes about 10 ms


class MemoryMonitor:
    """A thread that sets the target of `budget`, which belongs to the engine of `loop`.

    `root` is the root directory of the files that are read.  `num_sharing` models of this machine,
    which any thread may set, share the default size.
    """

    def __init__(self, loop: Loop[Any], budget: CacheBudget, root: Path = ROOT) -> None:
        self._loop, self._budget, self._root = loop, budget, root
        self.num_sharing = 1
        self._target = MemoryTarget(budget.max_kept)
        self._applied = budget.max_kept  # target that the engine knows
        self._stuck: tuple[int, int] | None = None  # (used, target) of which nothing can be freed
        self._is_short = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread; the loop must still run."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self, now: float) -> None:
        """Read the memory at the time `now`, decide, and have the engine follow.

        Raises StartError if the machine does not tell.
        """
        memory, budget = read_main_memory(self._root), self._budget
        limit = budget.divided_by(self.num_sharing)
        self._target = decide(self._target, memory, budget.used, limit, now)
        target = self._target.num_bytes
        is_short = self._target.is_short(now)
        if abs(target - self._applied) > budget.max_kept // 100 or budget.used > target:
            released = self._apply(target)
            if released and is_short:
                trim()
                self._warn(memory, released)
        if self._is_short and not is_short and target == limit:
            self._is_short = False
            log.info("memory is no longer short: the prefix cache may take %s again", _mb(target))

    def _run(self) -> None:
        while not self._closing.wait(SECONDS):
            try:
                self.check(time.monotonic())
            except ServingError as error:
                log.warning("the prefix cache gives back no memory when it is short: %s", error)
                return

    def _apply(self, target: int) -> int:
        """Set the target, and release what exceeds it, a part between two steps; count it."""
        budget, total = self._budget, 0
        self._applied = target

        def follow(_: Any) -> int:
            budget.set_target(target)
            return budget.release(RELEASED_AT_ONCE)

        if self._stuck == (budget.used, target):
            return 0
        while released := self._wait_for(self._loop.submit(follow)):
            total += released
        self._stuck = (budget.used, target)
        return total

    def _wait_for(self, future: "Future[int]") -> int:
        """Return the result of `future`; 0 if this is closed before, as the loop may have ended."""
        while not self._closing.is_set():
            if wait([future], timeout=SECONDS).done:
                return future.result()
        return 0

    def _warn(self, memory: MainMemory, released: int) -> None:
        if not self._is_short:
            self._is_short = True
            log.warning(
                "memory is short (%s of %s are available, processes waited for memory %.0f %% of "
                "the time): the prefix cache gave back %s and keeps %s",
                _mb(memory.available), _mb(memory.total), memory.stalled, _mb(released),
                _mb(self._budget.used),
            )  # fmt: skip


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"
