"""Options of traces: where they are sent, and which are sampled."""

import os
from dataclasses import dataclass

from mindspore_serving.errors import InvalidInputs

EXPORTER = "OTEL_TRACES_EXPORTER"
DISABLED = "OTEL_SDK_DISABLED"


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Endpoint and sampling of traces.

    `endpoint` is the URL of an OpenTelemetry collector, "" for that of the OTEL_EXPORTER_OTLP_*
    variables. `ratio` is the share of the traces started here that is recorded; None is that of
    OTEL_TRACES_SAMPLER, all by default. For a trace started elsewhere its start decides.
    """

    endpoint: str = ""
    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise InvalidInputs(
                f"Parameter 'endpoint' should be a URL as http://collector:4318, but actually "
                f"{self.endpoint!r}"
            )
        if self.ratio is not None and not 0 <= self.ratio <= 1:
            raise InvalidInputs(
                f"Parameter 'sampling_ratio' should be 0 to 1, but actually {self.ratio!r}"
            )


def is_requested(endpoint: str) -> bool:
    """Return whether the command line or the environment requests traces."""
    return bool(endpoint) or "otlp" in os.environ.get(EXPORTER, "").split(",")


def is_disabled() -> bool:
    """Return whether the environment turns OpenTelemetry off."""
    return os.environ.get(DISABLED, "").strip().lower() == "true"


_changed_ratio: float | None = None


def change_ratio(ratio: float | None) -> None:
    """Record this share of the traces that begin here; None is that of the operator again."""
    global _changed_ratio
    _changed_ratio = ratio


def changed_ratio() -> float | None:
    """Return the share that replaces the operator's; None if none does."""
    return _changed_ratio
