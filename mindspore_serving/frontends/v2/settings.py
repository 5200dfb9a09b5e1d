"""The settings of protocol v2 that can be read, and changed as far as that means something here:
which levels are logged, and how requests are traced.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from mindspore_serving import log
from mindspore_serving.core.service import ModelControl
from mindspore_serving.errors import Forbidden, InvalidInputs
from mindspore_serving.frontends.v2.answers import LogSettings, TraceSettings
from mindspore_serving.tracing.options import TraceOptions

_FLAGS = ("log_info", "log_warning", "log_error")  # from level 1 on
_VERBOSE = "log_verbose_level"


def log_settings() -> LogSettings:
    level = int(log.get_level())
    return LogSettings("", level <= 1, level <= 2, level <= 3, int(level == 0), "default")


def check_log_changes(repository: ModelControl | None, changes: Mapping[str, Any]) -> None:
    """Raises Forbidden for changes that the operator lets nobody make, as those of models."""
    if changes and (repository is None or not repository.is_allowed):
        raise Forbidden(
            "clients may not change what this server logs; --allow-loading, or allow_loading of "
            "the function that starts it, lets them, and SIGUSR1 and SIGUSR2 do it without"
        )


def change_log_settings(changes: Mapping[str, Any]) -> LogSettings:
    """The settings with `changes`.  Raises InvalidInputs, and changes nothing, for what is not
    known, cannot be changed, or no set of levels that begins somewhere and has all above.
    """
    present = asdict(log_settings())
    for name, value in changes.items():
        if name not in present:
            raise InvalidInputs(f"log setting '{name[:64]}' is unknown; there are {list(present)}")
        expected = int if name == _VERBOSE else type(present[name])
        if type(value) is not expected or (expected is int and value < 0):
            raise InvalidInputs(f"log setting {name} is {value!r}, expected {expected.__name__}")
        if expected is str and value != present[name]:
            raise InvalidInputs(f"log setting {name} cannot be changed while the server runs")
    wanted = {**present, **changes}
    flags = [wanted[name] for name in _FLAGS]
    if flags != sorted(flags) or (wanted[_VERBOSE] and not flags[0]):
        raise InvalidInputs("who logs a level logs all above it: verbose, info, warning, error")
    level = 0 if wanted[_VERBOSE] else len(_FLAGS) + 1 - sum(flags)
    log.set_level(str(level))
    return log_settings()


def trace_settings(traces: TraceOptions | None) -> TraceSettings:
    """What `traces` say, None if requests are not traced; one of `trace_rate` requests is recorded,
    of those that come without a trace.
    """
    ratio = 0.0 if traces is None else 1.0 if traces.ratio is None else traces.ratio
    level = "TIMESTAMPS" if ratio else "OFF"
    return TraceSettings([level], str(round(1 / ratio) if ratio else 0))


def change_trace_settings(changes: Mapping[str, Any], traces: TraceOptions | None) -> TraceSettings:
    """The same settings.  Raises InvalidInputs for any other."""
    settings = trace_settings(traces)
    present = asdict(settings)
    for name, value in changes.items():
        if name not in present:
            text = f"trace setting '{name[:64]}' is unknown; there are {list(present)}"
            raise InvalidInputs(text)
        if value is not None and value not in (present[name], [present[name]]):
            raise InvalidInputs(
                f"trace setting {name} is {value!r:.100}: the operator of the server says what is "
                "traced (--trace-endpoint)"
            )
    return settings
