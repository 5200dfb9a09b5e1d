"""Settings of protocol v2: levels of the log and tracing, as far as they apply to this server."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from mindspore_serving import log
from mindspore_serving.core.service import ModelControl
from mindspore_serving.errors import Forbidden, InvalidInputs
from mindspore_serving.frontends.v2.answers import LogSettings, TraceSettings
from mindspore_serving.tracing.options import TraceOptions

_FLAGS = ("log_info", "log_warning", "log_error")  # of levels 1, 2, 3
_VERBOSE = "log_verbose_level"


def log_settings() -> LogSettings:
    """Return the settings of the log."""
    level = int(log.get_level())
    return LogSettings("", level <= 1, level <= 2, level <= 3, int(level == 0), "default")


def check_log_changes(repository: ModelControl | None, changes: Mapping[str, Any]) -> None:
    """Raise Forbidden for changes if the operator does not allow clients to load models."""
    if changes and (repository is None or not repository.is_allowed):
        raise Forbidden(
            "clients cannot change the log level of this server; --allow-loading, or allow_loading "
            "of the function that starts it, allows it; SIGUSR1 and SIGUSR2 change it, too"
        )


def change_log_settings(changes: Mapping[str, Any]) -> LogSettings:
    """Change settings of the log; return all settings.

    Raises InvalidInputs, and changes nothing, for an unknown or fixed setting, and for levels
    without all levels above them.
    """
    present = asdict(log_settings())
    for name, value in changes.items():
        if name not in present:
            raise InvalidInputs(
                f"log setting '{name[:64]}' is unknown, expected one of {list(present)}"
            )
        expected = int if name == _VERBOSE else type(present[name])
        if type(value) is not expected or (expected is int and value < 0):
            raise InvalidInputs(f"log setting {name} is {value!r}, expected {expected.__name__}")
        if expected is str and value != present[name]:
            raise InvalidInputs(f"log setting {name} cannot be changed while the server runs")
    merged = {**present, **changes}
    flags = [merged[name] for name in _FLAGS]
    if flags != sorted(flags) or (merged[_VERBOSE] and not flags[0]):
        raise InvalidInputs("a logged level needs all above it: verbose, info, warning, error")
    level = 0 if merged[_VERBOSE] else len(_FLAGS) + 1 - sum(flags)
    log.set_level(str(level))
    return log_settings()


def trace_settings(traces: TraceOptions | None) -> TraceSettings:
    """Return the settings of traces; `traces` is None if tracing is off."""
    ratio = 0.0 if traces is None else 1.0 if traces.ratio is None else traces.ratio
    level = "TIMESTAMPS" if ratio else "OFF"
    return TraceSettings([level], str(round(1 / ratio) if ratio else 0))


def change_trace_settings(changes: Mapping[str, Any], traces: TraceOptions | None) -> TraceSettings:
    """Return the present settings.  Raises InvalidInputs for changes of them."""
    settings = trace_settings(traces)
    present = asdict(settings)
    for name, value in changes.items():
        if name not in present:
            text = f"trace setting '{name[:64]}' is unknown, expected one of {list(present)}"
            raise InvalidInputs(text)
        if value is not None and value not in (present[name], [present[name]]):
            raise InvalidInputs(
                f"trace setting {name} is {value!r:.100}: only the operator of the server can "
                "change it (--trace-endpoint)"
            )
    return settings
