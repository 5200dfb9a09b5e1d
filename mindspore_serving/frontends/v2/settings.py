"""Settings of protocol v2: levels of the log and tracing, as far as they apply to this server."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from mindspore_serving import log
from mindspore_serving.core.service import ModelControl
from mindspore_serving.errors import Forbidden, InvalidInputs
from mindspore_serving.frontends.v2.answers import LogSettings, TraceSettings
from mindspore_serving.tracing.options import TraceOptions, change_ratio, changed_ratio

_FLAGS = ("log_info", "log_warning", "log_error")  # of levels 1, 2, 3
_LEVEL, _RATE = "trace_level", "trace_rate"
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
    ratio = 0.0 if traces is None else _ratio_of(traces)
    level = "TIMESTAMPS" if ratio else "OFF"
    return TraceSettings([level], str(round(1 / ratio) if ratio else 0))


def _ratio_of(traces: TraceOptions) -> float:
    changed = changed_ratio()
    operators = 1.0 if traces.ratio is None else traces.ratio
    return operators if changed is None else changed


def change_trace_settings(
    changes: Mapping[str, Any],
    traces: TraceOptions | None,
    repository: ModelControl | None = None,
    model: str = "",
) -> TraceSettings:
    """Change the level or the rate of traces, of all models; return the settings.

    None is the operator's value again.  Raises InvalidInputs, and changes nothing, for other
    settings, for those of a `model`, without traces, and if the operator does not allow clients to
    load models.
    """
    present = asdict(trace_settings(traces))
    for name, value in changes.items():
        if name not in present:
            text = f"trace setting '{name[:64]}' is unknown, expected one of {list(present)}"
            raise InvalidInputs(text)
        is_free = name in (_LEVEL, _RATE) and traces is not None and not model
        if is_free and repository is not None and repository.is_allowed:
            continue
        if value is not None and value not in (present[name], [present[name]]):
            raise InvalidInputs(
                f"trace setting {name} is {value!r:.100}: only the operator of the server can "
                f"change it (--trace-endpoint); clients can change {_LEVEL} and {_RATE}, of all "
                "models at once, if requests are traced and --allow-loading is set"
            )
    if traces is not None and not changes.keys().isdisjoint((_LEVEL, _RATE)) and not model:
        change_ratio(_new_ratio(changes, traces))
    return trace_settings(traces)


def _new_ratio(changes: Mapping[str, Any], traces: TraceOptions) -> float | None:
    """Return the share of traces by the changed level and rate; None for the operator's."""
    level, rate = (_single(changes.get(name)) for name in (_LEVEL, _RATE))
    if level not in (None, "OFF", "TIMESTAMPS"):
        raise InvalidInputs(f"{_LEVEL} is {level!r:.100}, expected OFF or TIMESTAMPS")
    text = "" if rate is None else str(rate)
    if text and not (text.isascii() and text.isdigit() and int(text[:10]) >= 1 and len(text) < 10):
        raise InvalidInputs(f"{_RATE} is {text[:64]!r}, expected a number from 1: one in so many")
    is_off = level == "OFF" or (_LEVEL not in changes and not _ratio_of(traces))
    if text and is_off:
        raise InvalidInputs(f"{_RATE} is {text} and {_LEVEL} OFF: set {_LEVEL} to TIMESTAMPS, too")
    if is_off:
        return 0.0
    if text:
        return 1 / int(text)
    if _RATE in changes or level is None:
        return None
    return _ratio_of(traces) or traces.ratio or 1.0


def _single(value: Any) -> Any:
    """Return the only element of a list, as gRPC sends settings, or else `value`."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
