"""What the operator asked for: which servable, which version, on which devices, how batched.

Frozen data, no checks: `server.config` makes it from checked arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import msgspec

MAX_PREFERRED_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How long requests may wait for company.

    `max_wait` (seconds) 0 takes whatever is queued, as the original did.  With a delay, a batch
    leaves when `preferred_size` instances wait, at most MAX_PREFERRED_SIZE, or the oldest has
    waited `max_wait`.
    """

    max_wait: float = 0.0
    preferred_size: int = 0

    def of_size(self, batch_size: int) -> "BatchPolicy":
        """The same for a method whose batches have that size: with a delay and no preferred size, a
        batch of it need not wait."""
        if self.max_wait and not self.preferred_size:
            return replace(self, preferred_size=batch_size)
        return self


class GangOptions(msgspec.Struct, frozen=True):
    """Of a distributed servable: its rank table as text, where agents connect to ("ip:port"), how
    long to wait for them, how long one may be silent, and how long a prediction may take (seconds,
    0 for ever)."""

    rank_table: str
    address: str
    wait_seconds: float
    heartbeat_timeout: float
    stage_timeout: float = 0.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """Between which bounds the number of workers follows that of the requests.

    One worker for `requests_per_worker` requests in flight, at once when there are more, and fewer
    when fewer would have done for `scale_down_delay` seconds.
    """

    min_workers: int
    max_workers: int
    requests_per_worker: int = 8
    scale_down_delay: float = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of a server: its requests in flight, and how many servables have workers (0: any number)."""

    max_enqueued_requests: int = 10_000
    max_loaded: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """What is not served, and why.  `name` is what clients would call it, "" for what is no
    model."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.name else self.reason


@dataclass(frozen=True, slots=True)
class Deployment:
    """One version of one servable.  `version` 0 means the newest directory found at start.

    A deployment with a higher `generation` takes the place of one of the same version.
    """

    servable_directory: str
    servable_name: str
    version: int = 0
    device_type: str = "none"  # "none" (first that works), "ascend", "gpu" or "cpu"
    device_ids: tuple[int, ...] = ()
    num_parallel_workers: int = 0
    scaling: Scaling | None = None  # None: always as many workers as the two above say
    dec_key: bytes | None = field(default=None, repr=False)
    dec_mode: str = "AES-GCM"
    batching: BatchPolicy = BatchPolicy()
    enable_lite: bool = False
    retry: bool = True  # resend to another replica when a worker dies
    restart_policy: str = "always"  # "always", "limited" or "never"
    max_requests: int = 0  # in flight; 0 for no limit but the server's
    heartbeat_timeout: float = 10.0  # seconds; 0 for none, as in the next two
    stage_timeout: float = 0.0  # seconds
    step_timeout: float = 300.0  # seconds
    node_labels: Mapping[str, str] = field(default_factory=dict)  # that its machines must have
    alias: str = ""  # what clients call it, if not by the name of its directory
    llm_options: Mapping[str, Any] = field(default_factory=dict)  # of a bare language model
    allow_pickle: bool = False  # whether a bare model may be one
    backend: str = ""  # of a bare model, where there is a choice
    with_batch_dim: bool = True  # of a bare model
    gang: GangOptions | None = None  # of a distributed servable
    python: str = ""  # the interpreter of its workers, if it is not the server's
    environment: str = ""  # a directory that lists the packages of an interpreter to make for them
    generation: int = 0

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.alias or self.servable_name

    @property
    def num_ranks(self) -> int:
        """Processes over which each worker of a bare language model cuts it; a wrong option, which
        the worker refuses, counts as 1."""
        sizes = (self.llm_options.get(f"{kind}_parallel") for kind in ("tensor", "pipeline"))
        return prod(size for size in sizes if isinstance(size, int) and size > 0)

    @property
    def num_extra_workers(self) -> int:
        """Python-only workers beside the ones that own a device."""
        return max(0, self.num_parallel_workers - len(self.device_ids))
