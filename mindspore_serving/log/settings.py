"""Settings of the log in environment variables.

    MINDSPORE_SERVING_LOG_LEVEL     debug, info, warning or error
    MINDSPORE_SERVING_LOG_FORMAT    text (default), or json: an object in each line
    MINDSPORE_SERVING_ACCESS_LOG    1 writes a line for each response of the servers (default 0)
    MINDSPORE_SERVING_LOG_REQUESTS  1 writes the prompts and values of requests (default 0)

    GLOG_v               0 DEBUG, 1 INFO, 2 WARNING (default), 3 ERROR, 4 nothing
    MS_SUBMODULE_LOG_v   "{SERVING:1}" overrides GLOG_v for Serving alone
    GLOG_logtostderr     1 (default) stderr; 0 the file mindspore_serving.log.{pid} in GLOG_log_dir
    GLOG_log_dir         an existing directory, needed when GLOG_logtostderr is 0
    GLOG_stderrthreshold with a file, the level from which lines go to stderr as well (default 2)
    logger_maxBytes      size in bytes at which the file is rotated (default 52428800)
    logger_backupCount   number of rotated files that are kept (default 30)

MINDSPORE_SERVING_LOG_LEVEL has precedence over the others, which are also MindSpore's. A wrong
setting raises ValueError.
"""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

_MAX_DIGITS = 18
LEVELS = {
    "0": logging.DEBUG,
    "1": logging.INFO,
    "2": logging.WARNING,
    "3": logging.ERROR,
    "4": logging.CRITICAL,  # MindSpore's, which shares GLOG_v; no line of ours is critical
}
NAMES = {"debug": "0", "info": "1", "warning": "2", "error": "3"}
FORMATS = ("text", "json")
FORMAT = "MINDSPORE_SERVING_LOG_FORMAT"
LEVEL = "MINDSPORE_SERVING_LOG_LEVEL"
ACCESS = "MINDSPORE_SERVING_ACCESS_LOG"
REQUESTS = "MINDSPORE_SERVING_LOG_REQUESTS"
_SUBMODULE_LEVEL = re.compile(r"[{,]\s*SERVING\s*:\s*([^,}\s]*)\s*(?=[,}])")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the log; sizes in bytes, levels "0" to "4"."""

    level: str
    directory: str | None  # None logs to stderr
    max_bytes: int
    backup_count: int
    stderr_threshold: str
    is_json: bool
    has_access_log: bool
    has_requests: bool


def read_settings(env: Mapping[str, str]) -> Settings:
    """Read the settings from environment variables.  Raises ValueError."""
    level = _choice(env, "GLOG_v", "2", tuple(LEVELS))
    override = _SUBMODULE_LEVEL.search(env.get("MS_SUBMODULE_LOG_v", ""))
    if override:
        level = _choice({"MS_SUBMODULE_LOG_v": override[1]}, "MS_SUBMODULE_LOG_v", "", [*LEVELS])
    if LEVEL in env:
        level = NAMES[_choice(env, LEVEL, "", tuple(NAMES))]
    directory = None
    if _choice(env, "GLOG_logtostderr", "1", ("0", "1")) == "0":
        directory = env.get("GLOG_log_dir", "")
        if not os.path.isdir(directory):
            raise ValueError(
                "GLOG_logtostderr is 0, so GLOG_log_dir must be an existing directory, but it is "
                f"'{directory}'; create it, or set GLOG_logtostderr to 1"
            )
    return Settings(
        level=level,
        directory=os.path.realpath(directory) if directory else None,
        max_bytes=_count(env, "logger_maxBytes", 50 * 1024 * 1024),
        backup_count=_count(env, "logger_backupCount", 30),
        stderr_threshold=_choice(env, "GLOG_stderrthreshold", "2", tuple(LEVELS)),
        is_json=_choice(env, FORMAT, "text", FORMATS) == "json",
        has_access_log=_choice(env, ACCESS, "0", ("0", "1")) == "1",
        has_requests=_choice(env, REQUESTS, "0", ("0", "1")) == "1",
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
    if not (value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS):
        raise ValueError(f"{name} should be a number >= 0, but it is '{value:.32}'")
    return int(value)
