"""Formats of log lines: that of the original, or JSON objects."""

import json
import logging
import os
import re
from collections.abc import ItemsView, Mapping
from datetime import datetime, timezone
from typing import Any

from mindspore_serving.log.context import request_id

# C0, DEL, C1, line and paragraph separators, and the marks that reverse the direction of text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

_PLAIN = re.compile(r"[^\s\"]+")


def escape(text: str) -> str:
    r"""Escape `text` to one line without control characters: "a\nb" becomes a, \, n, b."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


class TextFormatter(logging.Formatter):
    """Formatter of `[LEVEL] SERVING(pid:tid,processName):time [file:line] message`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created)
        micros = f"{moment.microsecond // 1000:03}.{moment.microsecond % 1000:03}"
        id_of_request = request_id.get()
        message = " ".join([record.getMessage(), *(f"{k}={_word(v)}" for k, v in _fields(record))])
        line = (
            f"[{record.levelname}] SERVING({record.process}:{record.thread},{record.processName}):"
            f"{moment:%Y-%m-%d-%H:%M:%S}.{micros} [{_location(record)}] "
            f"{escape(f'{id_of_request}: {message}' if id_of_request else message)}"
        )
        if record.exc_info:
            # Indented, so that no line of an exception's text can look like a record.
            text = self.formatException(record.exc_info)
            line += "".join(f"\n    {escape(part)}" for part in text.split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """Formatter of ASCII objects: time (UTC), level, logger, message, request_id, file, process.

    They also have thread, exception if there is one, and the fields of an event.
    """

    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": request_id.get(),
            "file": _location(record),
            "process": record.process,
            "thread": record.threadName,
        }
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps({**values, **dict(_fields(record))}, default=str)


def _location(record: logging.LogRecord) -> str:
    package = record.pathname.rfind(f"mindspore_serving{os.sep}")
    path = record.pathname[package:] if package >= 0 else record.filename
    return f"{path}:{record.lineno}"


def _fields(record: logging.LogRecord) -> ItemsView[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields.items()


def _word(value: object) -> str:
    text = str(value)
    return text if text and _PLAIN.fullmatch(text) else json.dumps(text)
