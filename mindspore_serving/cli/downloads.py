"""`mindspore-serving pull`, `list` and `remove`: downloads of models by name."""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from mindspore_serving import log
from mindspore_serving.cli.doctor import table
from mindspore_serving.cli.tool_settings import ListSettings, PullSettings, RemoveSettings
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.hub import downloads
from mindspore_serving.hub.planning import PlannedDownload
from mindspore_serving.hub.resolve import format_size, show_progress
from mindspore_serving.hub.source import CachedModel
from mindspore_serving.servable.licence import to_line

_HEADER = ("name", "revision", "size", "last used", "format")
_PINNED = 12  # characters of a revision in a table
_AGES = ((86400, "day"), (3600, "hour"), (60, "minute"))


def pull(settings: PullSettings) -> int:
    """Download a model, and print its path; return 0.  Raises ServingError."""
    download = downloads.find_download(downloads.parse_name(settings.name))
    selection = download.selection
    text = (
        f"{download.reference} at {download.listing.revision}: "
        f"{', '.join(_shown_files(download))}; {format_size(selection.size)}"
    )
    log.tell(to_line(text), is_warning=True)
    with show_progress(selection.size) as report:
        path = download.fetch(report)
    print(path)
    return 0


def _shown_files(download: PlannedDownload) -> list[str]:
    files = sorted(download.selection.files, key=lambda file: -file.size)
    shown = [file.path for file in files[:3]]
    rest = len(files) - len(shown)
    return shown + [f"{rest} more files"] * (rest > 0)


def list_downloads(settings: ListSettings) -> int:
    """Print a line for each download, the last used first; return 0."""
    models = downloads.list_cached()
    if settings.json:
        print(json.dumps([_as_json(model) for model in models], indent=2))
        return 0
    if not models:
        log.tell("no model is downloaded: `mindspore-serving pull ORG/NAME` downloads one")
        return 0
    now = time.time()
    rows = [
        (
            str(model.reference),
            model.revision[:_PINNED],
            format_size(model.size),
            _age(now - model.used),
            downloads.format_of(model) or "incomplete",
        )
        for model in models
    ]
    for line in table([_HEADER, *rows]):
        print(line)
    return 0


def _as_json(model: CachedModel) -> dict[str, Any]:
    return {
        "name": str(model.reference),
        "revision": model.revision,
        "path": str(model.path),
        "size_bytes": model.size,
        "last_used": int(model.used),
        "format": downloads.format_of(model) or None,
    }


def _age(seconds: float) -> str:
    for size, unit in _AGES:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "just now"


def remove(settings: RemoveSettings) -> int:
    """Remove downloads after a question; return 0, or 1 if the answer is no.

    Raises ServingError if nothing was downloaded by that name.
    """
    reference = downloads.parse_name(settings.name)
    if reference.file:
        raise InvalidInputs(
            f"{settings.name!r} names a file, but whole downloads are removed: leave out "
            f"':{reference.file}'"
        )
    models = downloads.find_cached(reference)
    if not settings.yes and not _is_confirmed(models):
        return 1
    print(f"freed {format_size(downloads.remove(models))}")
    return 0


def _is_confirmed(models: Sequence[CachedModel]) -> bool:
    """Ask the user on a terminal.  Raises InvalidInputs without one."""
    lines = [
        f"{model.reference} at {model.revision[:_PINNED]}, {format_size(model.size)}: {model.path}"
        for model in models
    ]
    if not sys.stdin.isatty():
        shown = "; ".join(lines)
        raise InvalidInputs(f"there is no terminal to ask: --yes removes it without ({shown})")
    print("\n".join(lines))
    return input("Remove it? [y/N] ").strip().lower() in ("y", "yes")
