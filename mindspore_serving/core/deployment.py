"""Deployments: options of a servable from the operator, and what the server adds.

Frozen data without checks: `server.config` creates it from checked arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mindspore_serving.core.servable_options import ServableOptions


class GangOptions(msgspec.Struct, frozen=True):
    """Options of a distributed servable.

    `rank_table` is its text, `address` is "ip:port" where agents connect. Times are in seconds:
    `wait_seconds` until agents have connected, `heartbeat_timeout` without a message, and
    `stage_timeout` of a prediction (0: no limit).
    """

    rank_table: str
    address: str
    wait_seconds: float
    heartbeat_timeout: float
    stage_timeout: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits of a server: requests in flight, and servables with workers (0: no limit)."""

    max_enqueued_requests: int = 10_000
    max_loaded: int = 0


@dataclass(frozen=True, slots=True)
class RefusedServable:
    """Servable that is not served, and why.

    `name` is its name for clients, "" for a file that is no model.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.name else self.reason


@dataclass(frozen=True, slots=True)
class Deployment(ServableOptions):
    """Deployment of a version of a servable; `version_number` 0 is the newest directory at start.

    A deployment with a higher `generation` replaces one of the same version.
    """

    servable_directory: str
    servable_name: str
    device_ids: tuple[int, ...] = ()
    device_type: str = "none"  # "none" (first that works), "ascend", "gpu" or "cpu"
    node_labels: Mapping[str, str] = field(default_factory=dict)
    batch_axis: Mapping[str, int] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    resource_counts: Mapping[str, int] = field(default_factory=dict)
    level_queue_ms: Mapping[str, int] = field(default_factory=dict)
    level_queue_sizes: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    traffic: Mapping[str, float] = field(default_factory=dict)
    shadow: Mapping[str, float] = field(default_factory=dict)
    llm_options: Mapping[str, Any] = field(default_factory=dict)  # of a bare language model
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of a network in code
    inputs: Mapping[str, str] = field(default_factory=dict)
    enable_lite: bool = False
    gang: GangOptions | None = None  # of a distributed servable
    generation: int = 0

    @property
    def is_scaled(self) -> bool:
        """True if the number of workers follows the number of requests."""
        return self.max_workers > 0

    @property
    def run_options(self) -> dict[str, Any]:
        """Options of the runtime of each model, as in `DeclaredModel.options`."""
        options = {"thread_num": self.model_threads, "precision_mode": self.precision}
        return {name: value for name, value in options.items() if value}

    @property
    def num_extra_workers(self) -> int:
        """Number of workers without a device, which run Python stages only."""
        return max(0, self.num_parallel_workers - len(self.device_ids))
