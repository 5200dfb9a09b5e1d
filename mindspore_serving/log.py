"""The log of a process: four levels to stderr or a file, set by the GLOG_* environment variables.

Nothing is read or opened before the first line is logged.  It does not know what it logs: control
characters are escaped whoever wrote them, so that no request can forge a line.

    GLOG_v               0 DEBUG, 1 INFO, 2 WARNING (default), 3 ERROR, 4 nothing
    MS_SUBMODULE_LOG_v   "{SERVING:1}" overrides GLOG_v for Serving alone
    GLOG_logtostderr     1 (default) stderr; 0 the file mindspore_serving.log.{pid} in GLOG_log_dir
    GLOG_log_dir         an existing directory, needed when GLOG_logtostderr is 0
    GLOG_stderrthreshold with a file, the level from which lines go to stderr as well (default 2)
    logger_maxBytes      size at which the file is rotated (default 52428800)
    logger_backupCount   rotated files kept (default 30)

A setting that cannot be used raises ValueError at the first line logged.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    _Stream = logging.StreamHandler[TextIO]
else:
    _Stream = logging.StreamHandler  # takes no parameter before Python 3.11

_LEVELS = {
    "0": logging.DEBUG,
    "1": logging.INFO,
    "2": logging.WARNING,
    "3": logging.ERROR,
    "4": logging.CRITICAL,  # a level of MindSpore, which shares GLOG_v; nothing of ours is critical
}
# C0, DEL, C1, line and paragraph separators, and the marks that reverse the direction of text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_SUBMODULE_LEVEL = re.compile(r"[{,]\s*SERVING\s*:\s*([^,}\s]*)\s*(?=[,}])")


request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that is served now; it stands in front of the messages."""


@contextmanager
def of_request(name: str) -> Iterator[None]:
    """What is logged inside is of the request `name`; "" is of the one before."""
    token = request_id.set(name or request_id.get())
    try:
        yield
    finally:
        request_id.reset(token)


def debug(msg: str, *args: object) -> None:
    """Log `msg % args` at level 0."""
    _log(logging.DEBUG, msg, args)


def info(msg: str, *args: object) -> None:
    """Log `msg % args` at level 1."""
    _log(logging.INFO, msg, args)


def warning(msg: str, *args: object) -> None:
    """Log `msg % args` at level 2."""
    _log(logging.WARNING, msg, args)


def error(msg: str, *args: object, exc_info: bool = False) -> None:
    """Log `msg % args` at level 3; with `exc_info`, the current exception's traceback below it."""
    _log(logging.ERROR, msg, args, exc_info)


def get_level() -> str:
    """The level in force, "0" to "4"."""
    return _settings().level if _changed_level is None else _changed_level


def set_level(level: str | None) -> None:
    """Log from `level` on, "0" to "4"; None for that of the environment."""
    global _changed_level
    _logger().setLevel(_LEVELS[_settings().level if level is None else level])
    _changed_level = level


def get_log_config() -> dict[str, str]:
    """The settings in force, under the names of their environment variables."""
    settings = _settings()
    config = {"GLOG_v": settings.level, "GLOG_logtostderr": "0" if settings.directory else "1"}
    if settings.directory:
        config["GLOG_log_dir"] = settings.directory
        config["logger_maxBytes"] = str(settings.max_bytes)
        config["logger_backupCount"] = str(settings.backup_count)
        config["GLOG_stderrthreshold"] = settings.stderr_threshold
    return config


def escape(text: str) -> str:
    r"""`text` on one line and harmless to a terminal: "a\nb" becomes a, backslash, n, b."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


@dataclass(frozen=True, slots=True)
class _Settings:
    level: str
    directory: str | None  # None logs to stderr
    max_bytes: int
    backup_count: int
    stderr_threshold: str


def _read_settings(env: Mapping[str, str]) -> _Settings:
    level = _choice(env, "GLOG_v", "2", tuple(_LEVELS))
    override = _SUBMODULE_LEVEL.search(env.get("MS_SUBMODULE_LOG_v", ""))
    if override:
        level = _choice({"MS_SUBMODULE_LOG_v": override[1]}, "MS_SUBMODULE_LOG_v", "", [*_LEVELS])
    directory = None
    if _choice(env, "GLOG_logtostderr", "1", ("0", "1")) == "0":
        directory = env.get("GLOG_log_dir", "")
        if not os.path.isdir(directory):
            raise ValueError(
                "GLOG_logtostderr is 0, so GLOG_log_dir must be an existing directory, but it is "
                f"'{directory}'; create it, or set GLOG_logtostderr to 1"
            )
    return _Settings(
        level=level,
        directory=os.path.realpath(directory) if directory else None,
        max_bytes=_count(env, "logger_maxBytes", 50 * 1024 * 1024),
        backup_count=_count(env, "logger_backupCount", 30),
        stderr_threshold=_choice(env, "GLOG_stderrthreshold", "2", tuple(_LEVELS)),
    )


def _choice(
    env: Mapping[str, str], name: str, default: str, accepted: tuple[str, ...] | list[str]
) -> str:
    value = env.get(name, default)
    if value not in accepted:
        raise ValueError(f"{name} should be one of {', '.join(accepted)}, but it is '{value}'")
    return value


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    value = env.get(name, str(default))
    if not (value.isascii() and value.isdigit()):
        raise ValueError(f"{name} should be a number >= 0, but it is '{value}'")
    return int(value)


class _Formatter(logging.Formatter):
    """`[LEVEL] SERVING(pid:tid,processName):time [file:line] message`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created)
        micros = f"{moment.microsecond // 1000:03}.{moment.microsecond % 1000:03}"
        package = record.pathname.rfind(f"mindspore_serving{os.sep}")
        path = record.pathname[package:] if package >= 0 else record.filename
        served = request_id.get()
        message = f"{served}: {record.getMessage()}" if served else record.getMessage()
        line = (
            f"[{record.levelname}] SERVING({record.process}:{record.thread},{record.processName}):"
            f"{moment:%Y-%m-%d-%H:%M:%S}.{micros} [{path}:{record.lineno}] "
            f"{escape(message)}"
        )
        if record.exc_info:
            # Indented, so that no line of an exception's text can look like a record.
            text = self.formatException(record.exc_info)
            line += "".join(f"\n    {escape(part)}" for part in text.split("\n"))
        return line


class _StderrHandler(_Stream):
    """Writes to what `sys.stderr` is at that moment; it may be replaced after the first line."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_changed_level: str | None = None  # by `set_level`


@cache
def _settings() -> _Settings:
    return _read_settings(os.environ)


@cache
def _logger() -> logging.Logger:
    settings = _settings()
    logger = logging.getLogger("mindspore_serving")
    logger.propagate = False
    logger.setLevel(_LEVELS[settings.level])
    logger.handlers = [_with_format(_StderrHandler())]
    if settings.directory:
        logger.handlers[0].setLevel(_LEVELS[settings.stderr_threshold])
        logger.addHandler(_with_format(_rotating_file(settings, settings.directory)))
    return logger


def _rotating_file(settings: _Settings, directory: str) -> logging.Handler:
    """Files that only their owner can read."""
    from logging.handlers import RotatingFileHandler  # drags in sockets and pickle

    class PrivateFile(RotatingFileHandler):
        def _open(self) -> Any:
            os.close(os.open(self.baseFilename, os.O_CREAT | os.O_WRONLY, 0o600))
            return super()._open()

    path = os.path.join(directory, f"mindspore_serving.log.{os.getpid()}")
    most = settings.max_bytes, settings.backup_count
    return PrivateFile(path, maxBytes=most[0], backupCount=most[1], encoding="utf-8")


def _with_format(handler: logging.Handler) -> logging.Handler:
    handler.setFormatter(_Formatter())
    return handler


def _log(level: int, msg: str, args: tuple[object, ...], exc_info: bool = False) -> None:
    # Three frames up: this function, the public one, and the line that called it.
    _logger().log(level, msg, *args, exc_info=exc_info, stacklevel=3)
