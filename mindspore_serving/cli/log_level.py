"""`mindspore-serving log-level`: show or set the log level of a running server, by protocol v2."""

from typing import Any

from mindspore_serving.cli.calls import call
from mindspore_serving.cli.node_settings import LogLevelSettings
from mindspore_serving.cli.urls import SERVER_URL, is_url
from mindspore_serving.errors import InvalidInputs, ServingError, did_you_mean
from mindspore_serving.log.settings import NAMES

_VERBOSE = "log_verbose_level"
_FLAGS = {"info": "log_info", "warning": "log_warning", "error": "log_error"}  # from low to high


def run(settings: LogLevelSettings) -> int:
    """Set the level, if one is given, and print it.  Raises ServingError."""
    is_level = not settings.level and not is_url(settings.url)  # URL was left out
    level = settings.url if is_level else settings.level
    url = (settings.http or SERVER_URL) if is_level else settings.server
    if level and level not in NAMES:
        near = did_you_mean(level, NAMES)
        raise InvalidInputs(f"LEVEL is {level!r}, expected {', '.join(NAMES)}{near}")
    settings_of_server = call(settings, url, "/v2/logging", _to_settings(level) if level else None)
    print(_to_level(settings_of_server))
    return 0


def _to_settings(level: str) -> dict[str, Any]:
    """Return the settings of protocol v2 for a level; a level includes those above it."""
    levels = ["debug", *_FLAGS]
    shown = levels[levels.index(level) :]
    return {
        _VERBOSE: int(level == "debug"),
        **{flag: name in shown for name, flag in _FLAGS.items()},
    }


def _to_level(logging: dict[str, Any]) -> str:
    try:
        if logging[_VERBOSE]:
            return "debug"
        return next((name for name, flag in _FLAGS.items() if logging[flag]), "none")
    except (KeyError, TypeError) as error:
        raise ServingError(f"the server has no logging settings of protocol v2: {error}") from error
