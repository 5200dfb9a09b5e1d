"""What the operator asked for: the options of a servable, and what the server adds.

Frozen data, no checks: `server.config` makes it from checked arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import msgspec

from mindspore_serving.core.servable_options import ServableOptions


class GangOptions(msgspec.Struct, frozen=True):
    """Of a distributed servable: its rank table as text, where agents connect to ("ip:port"), how
    long to wait for them, how long one may be silent, and how long a prediction may take (seconds,
    0 for ever).
    """

    rank_table: str
    address: str
    wait_seconds: float
    heartbeat_timeout: float
    stage_timeout: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of a server: its requests in flight, and how many servables have workers (0: any number)."""

    max_enqueued_requests: int = 10_000
    max_loaded: int = 0


@dataclass(frozen=True, slots=True)
class RefusedServable:
    """What is not served, and why.  `name` is what clients would call it, "" for what is no
    model.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.name else self.reason


@dataclass(frozen=True, slots=True)
class Deployment(ServableOptions):
    """One version of one servable.  `version_number` 0 means the newest directory found at start.

    A deployment with a higher `generation` takes the place of one of the same version.
    """

    servable_directory: str
    servable_name: str
    device_ids: tuple[int, ...] = ()
    device_type: str = "none"  # "none" (first that works), "ascend", "gpu" or "cpu"
    node_labels: Mapping[str, str] = field(default_factory=dict)
    llm_options: Mapping[str, Any] = field(default_factory=dict)  # of a bare language model
    enable_lite: bool = False
    gang: GangOptions | None = None  # of a distributed servable
    generation: int = 0

    @property
    def is_scaled(self) -> bool:
        """Whether the number of workers follows that of the requests."""
        return self.max_workers > 0

    @property
    def num_ranks(self) -> int:
        """Processes over which each worker of a bare language model cuts it; a wrong option, which
        the worker refuses, counts as 1.
        """
        sizes = (self.llm_options.get(f"{kind}_parallel") for kind in ("tensor", "pipeline"))
        return prod(size for size in sizes if isinstance(size, int) and size > 0)

    @property
    def num_extra_workers(self) -> int:
        """Python-only workers beside the ones that own a device."""
        return max(0, self.num_parallel_workers - len(self.device_ids))
