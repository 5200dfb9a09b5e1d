"""Log of a process: four levels to stderr or a file, configured by environment variables.

Nothing is read or opened before the first line is logged. Control characters are escaped whatever
their source, so that no request can forge a line.

A wrong setting raises ValueError at the first line logged; `settings` has all of them.
"""

import logging
import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

from mindspore_serving.log.context import of_request, request_id
from mindspore_serving.log.events import EventWriter
from mindspore_serving.log.formats import JsonFormatter, TextFormatter, escape
from mindspore_serving.log.settings import LEVELS, Settings, read_settings

if TYPE_CHECKING:
    _Stream = logging.StreamHandler[TextIO]
else:
    _Stream = logging.StreamHandler  # takes no parameter before Python 3.11

__all__ = ["escape", "of_request", "request_id"]


def debug(msg: str, *args: object, exc_info: bool = False) -> None:
    """Log `msg % args` at level 0; with `exc_info`, the current exception's traceback below it."""
    _log(logging.DEBUG, msg, args, exc_info)


def info(msg: str, *args: object) -> None:
    """Log `msg % args` at level 1."""
    _log(logging.INFO, msg, args)


def warning(msg: str, *args: object) -> None:
    """Log `msg % args` at level 2."""
    _log(logging.WARNING, msg, args)


def error(msg: str, *args: object, exc_info: bool = False) -> None:
    """Log `msg % args` at level 3; with `exc_info`, the current exception's traceback below it."""
    _log(logging.ERROR, msg, args, exc_info)


def tell(text: str, *, is_warning: bool = False) -> None:
    """Print a line on stderr for the user: plain, or an object if the log is JSON."""
    try:
        is_json = _settings().is_json
    except ValueError:  # `text` reports this
        is_json = False
    if is_json:
        _log(logging.WARNING if is_warning else logging.ERROR, "%s", (text,))
    else:
        print(text, file=sys.stderr, flush=True)


def event(name: str, fields: Mapping[str, object]) -> None:
    """Write a line about a request soon, whatever the level, with `fields` after its name.

    The id of the current request is added, unless `fields` have one.
    """
    id_of_request = request_id.get()
    all_fields = {"request_id": id_of_request, **fields} if id_of_request else fields
    _events().write(name, all_fields, sys._getframe(1))


def has_access_log() -> bool:
    """Return whether each response is logged."""
    return _settings().has_access_log


def has_requests() -> bool:
    """Return whether the content of requests is logged."""
    return _settings().has_requests


def configure(variables: Mapping[str, str]) -> None:
    """Set environment variables of the log, here and for child processes.

    Raises ValueError if they cannot be used.
    """
    read_settings({**os.environ, **variables})
    os.environ.update(variables)
    _settings.cache_clear()
    _logger.cache_clear()


def get_level() -> str:
    """Return the current level, "0" to "4"."""
    return _settings().level if _changed_level is None else _changed_level


def changed_level() -> str | None:
    """Return the level that was last set by `set_level`."""
    return _changed_level


def set_level(level: str | None) -> None:
    """Log from `level`, "0" to "4"; None for the level of the environment."""
    global _changed_level
    _logger().setLevel(LEVELS[_settings().level if level is None else level])
    _changed_level = level


def is_shown(level: str) -> bool:
    """Return whether lines of `level`, "0" to "4", are logged."""
    return _logger().isEnabledFor(LEVELS[level])


def get_log_config() -> dict[str, str]:
    """Return the current settings by the names of their environment variables."""
    settings = _settings()
    config = {"GLOG_v": settings.level, "GLOG_logtostderr": "0" if settings.directory else "1"}
    if settings.directory:
        config["GLOG_log_dir"] = settings.directory
        config["logger_maxBytes"] = str(settings.max_bytes)
        config["logger_backupCount"] = str(settings.backup_count)
        config["GLOG_stderrthreshold"] = settings.stderr_threshold
    return config


class _StderrHandler(_Stream):
    """Handler for the current `sys.stderr`, which may be replaced after the first line."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_changed_level: str | None = None  # by `set_level`


@cache
def _settings() -> Settings:
    return read_settings(os.environ)


@cache
def _logger() -> logging.Logger:
    settings = _settings()
    logger = logging.getLogger("mindspore_serving")
    logger.propagate = False
    logger.setLevel(LEVELS[settings.level])
    logger.handlers = [_with_format(_StderrHandler())]
    if settings.directory:
        logger.handlers[0].setLevel(LEVELS[settings.stderr_threshold])
        logger.addHandler(_with_format(_rotating_file(settings, settings.directory)))
    return logger


@cache
def _events() -> EventWriter:
    return EventWriter(_logger())


def _rotating_file(settings: Settings, directory: str) -> logging.Handler:
    """Return a handler of files that only their owner can read."""
    from logging.handlers import RotatingFileHandler  # imports sockets and pickle

    class PrivateFile(RotatingFileHandler):
        def _open(self) -> Any:
            os.close(os.open(self.baseFilename, os.O_CREAT | os.O_WRONLY, 0o600))
            return super()._open()

    path = os.path.join(directory, f"mindspore_serving.log.{os.getpid()}")
    size, count = settings.max_bytes, settings.backup_count
    return PrivateFile(path, maxBytes=size, backupCount=count, encoding="utf-8")


def _with_format(handler: logging.Handler) -> logging.Handler:
    handler.setFormatter(JsonFormatter() if _settings().is_json else TextFormatter())
    return handler


def _log(level: int, msg: str, args: tuple[object, ...], exc_info: bool = False) -> None:
    # Three frames up: this function, the public one, and the line that called it.
    _logger().log(level, msg, *args, exc_info=exc_info, stacklevel=3)
