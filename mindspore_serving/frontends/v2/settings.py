"""The settings of protocol v2 that can be read, and changed as far as that means something here:
which levels are logged.  What is traced is decided when the server starts."""

from collections.abc import Mapping
from typing import Any

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs

_FLAGS = ("log_info", "log_warning", "log_error")  # from level 1 on
_VERBOSE = "log_verbose_level"
_TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
}


def log_settings() -> dict[str, Any]:
    level = int(log.get_level())
    return {
        "log_file": "",
        **{name: level <= place for place, name in enumerate(_FLAGS, 1)},
        _VERBOSE: 1 if level == 0 else 0,
        "log_format": "default",
    }


def change_log_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with `changes`.  Raises InvalidInputs, and changes nothing, for what is not
    known, cannot be changed, or no set of levels that begins somewhere and has all above."""
    present = log_settings()
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


def trace_settings() -> dict[str, Any]:
    return dict(_TRACE)


def change_trace_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings.  Raises InvalidInputs for any other."""
    for name, value in changes.items():
        if name not in _TRACE:
            raise InvalidInputs(f"trace setting '{name[:64]}' is unknown; there are {list(_TRACE)}")
        if value is not None and value not in (_TRACE[name], [_TRACE[name]]):
            raise InvalidInputs(f"trace setting {name} is {value!r}: tracing is not available")
    return trace_settings()
