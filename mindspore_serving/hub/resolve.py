"""Names of models to paths on disk: the cache first if offline, else the source.

The only place that turns what an operator writes into a download.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs, NotFound, did_you_mean
from mindspore_serving.hub.reference import ANY, Reference, parse_reference
from mindspore_serving.hub.selection import find_complete, local_files, select
from mindspore_serving.hub.source import Source, Unreachable, open_source
from mindspore_serving.hub.sources import SOURCES

ORDER = "MINDSPORE_SERVING_SOURCES"
"""Environment variable: the schemes that have a bare ORG/NAME, in order, by commas."""

_DEFAULT_ORDER = "hf"
_TRUE = ("1", "on", "yes", "true")


def resolve(text: str, *, offline: bool | None = None) -> str:
    """Return the path of what `text` names; a local path is returned unchanged.

    With `offline` (default: HF_HUB_OFFLINE) only downloads of earlier runs are used.
    """
    reference = parse_reference(text)
    if reference is None:
        return text
    return str(download(reference, offline=is_offline() if offline is None else offline))


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE


def source_order() -> list[str]:
    """Return the schemes that are asked for a bare ORG/NAME."""
    names = [name.strip() for name in os.environ.get(ORDER, _DEFAULT_ORDER).split(",")]
    known = [name for name, row in SOURCES.items() if row.form == "repository"]
    for name in names:
        if name not in known:
            raise InvalidInputs(
                f"{ORDER} has {name!r}, expected some of {', '.join(known)} by commas"
                f"{did_you_mean(name, known)}"
            )
    return names


def download(reference: Reference, *, offline: bool = False) -> Path:
    """Return the path of a model, downloaded if it has to be."""
    schemes = source_order() if reference.scheme == ANY else [reference.scheme]
    references = [
        Reference(scheme, reference.name, reference.revision, reference.file) for scheme in schemes
    ]
    if offline:
        return _find_cached(reference, references)
    for number, candidate in enumerate(references):
        try:
            return _download(candidate, open_source(candidate.scheme))
        except NotFound as error:
            if number == len(references) - 1:
                raise
            log.tell(f"{error}; trying {references[number + 1]}", is_warning=True)
    raise AssertionError("an order of sources is never empty")


def _find_cached(reference: Reference, references: list[Reference]) -> Path:
    for candidate in references:
        path = open_source(candidate.scheme).find_cached(candidate)
        if path is not None:
            return _entry(path, candidate.file)
    raise NotFound(f"{reference} is not downloaded, and downloads are off (--offline)")


def _download(reference: Reference, source: Source) -> Path:
    try:
        listing = source.list_files(reference)
    except Unreachable as error:
        path = source.find_cached(reference)
        if path is None:
            raise
        log.tell(f"{error}; using the download of an earlier run: {path}", is_warning=True)
        return _entry(path, reference.file)
    selection = select(listing.files, reference.file, str(reference))
    log.tell(
        f"{reference} at {listing.revision}: {len(selection.files)} files, "
        f"{format_size(selection.size)}"
    )
    with _progress(selection.size) as report:
        path = source.fetch(reference, listing, selection.files, report)
    return _entry(path, reference.file)


def _entry(path: Path, requested: str) -> Path:
    """Return the path to serve of a download: its directory, or a file in it."""
    if path.is_file():
        return path
    selection = find_complete(path, requested) or select(local_files(path), requested)
    return path / selection.entry if selection.entry else path


def format_size(size: float) -> str:
    """Return bytes with a unit: "1.5 GB"."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Hold a progress bar on a terminal; else print a line for each tenth."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(total=total, unit="B", unit_scale=True, desc="Download") as bar:
            yield bar.update
        return
    done = tenths = 0

    def report(count: int) -> None:
        nonlocal done, tenths
        done += count
        if total and done * 10 // total > tenths:
            tenths = done * 10 // total
            log.tell(f"downloaded {tenths * 10}%: {format_size(done)} of {format_size(total)}")

    yield report
