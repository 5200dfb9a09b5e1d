"""Where traces are sent, and which."""

import os
from dataclasses import dataclass

from mindspore_serving.errors import InvalidInputs

EXPORTER = "OTEL_TRACES_EXPORTER"
DISABLED = "OTEL_SDK_DISABLED"


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """`endpoint` is the URL of an OpenTelemetry collector, "" for that of the OTEL_EXPORTER_OTLP_*
    variables.  `ratio` is the share of the traces begun here that are recorded, None for what
    OTEL_TRACES_SAMPLER says, which is all by default; whoever begins a trace elsewhere decides
    for that.
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


def is_wanted(endpoint: str) -> bool:
    """Whether the command line or the environment asks for traces."""
    return bool(endpoint) or "otlp" in os.environ.get(EXPORTER, "").split(",")


def is_disabled() -> bool:
    """Whether the environment turns OpenTelemetry off."""
    return os.environ.get(DISABLED, "").strip().lower() == "true"
