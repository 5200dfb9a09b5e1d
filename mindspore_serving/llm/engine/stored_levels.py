"""State of a level of the prefix cache, as the engine's thread knows it, and of a prompt's read."""

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from mindspore_serving.llm.storage.block_threads import BlockThreads
from mindspore_serving.stores.circuit import Circuit


@dataclass(slots=True, eq=False)
class BlockRead:
    """Blocks that one prompt waits for."""

    digests: list[bytes]
    awaited: set[bytes]  # those that have not arrived
    began: float  # by `time.monotonic`
    num_requested: int = 0
    num_delivered: int = 0
    probe: bytes = b""  # the first block that was requested from a store that servers share
    blocks: list[int] = field(default_factory=list)  # in use until the last is delivered

    @property
    def is_probing(self) -> bool:
        """True until a shared store has delivered the first block, or has said that it has none."""
        return self.probe in self.awaited


class LevelState:
    """State of a level, as the engine's thread knows it."""

    def __init__(self, threads: BlockThreads) -> None:
        self.threads, self.level = threads, threads.level
        # Registered blocks of the cache that are not stored yet, and those that are.
        self.unsaved: OrderedDict[bytes, None] = OrderedDict()
        self.saved: set[bytes] = set()
        self.num_tokens = 0  # tokens whose blocks were read
        self.in_flight = 0  # blocks
        self.last_delivery = 0.0  # by `time.monotonic`
        self.is_stuck = False
        self.slow = Circuit()  # open after prompts that would have been computed sooner

    def request(self, digest: bytes) -> bool:
        """Request a block from the threads, unless it is known that there is none."""
        if self.is_stuck or self.slow.is_open or not self.level.may_have(digest):
            return False
        if not self.in_flight:
            self.last_delivery = time.monotonic()
        self.in_flight += 1
        self.threads.read(digest)
        return True

    @property
    def is_late(self) -> bool:
        """True if it has not delivered for too long."""
        waited = time.monotonic() - self.last_delivery
        return self.in_flight > 0 and waited > self.level.patience
