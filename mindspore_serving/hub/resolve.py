"""Names of models to paths on disk: the cache first if offline, else the source.

The only place that turns what an operator writes into a download.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs, NotFound, ServingError, did_you_mean
from mindspore_serving.hub.planning import plan_download
from mindspore_serving.hub.reference import ANY, Reference, parse_reference
from mindspore_serving.hub.selection import entry_of
from mindspore_serving.hub.source import NotInstalled, Source, Unreachable, open_source
from mindspore_serving.hub.sources import SOURCES

ORDER = "MINDSPORE_SERVING_SOURCES"
"""Environment variable: the schemes that have a bare ORG/NAME, in order, by commas."""

PATH_OPTIONS = ("draft", "mmproj")
"""Options of language models that are a path or the name of a model."""

_PINNED = re.compile(r"(sha256:)?([0-9a-f]{40}|[0-9a-f]{64})")  # revisions that cannot change
_SHOWN = 5  # names in an error
OFFLINE = "HF_HUB_OFFLINE"
_TRUE = ("1", "on", "yes", "true")
_paths: dict[Reference, str] = {}  # what this process has resolved, which stays as it is


def resolve(text: str, *, base: str = "", offline: bool | None = None) -> str:
    """Return the path of what `text` names; a local path is returned unchanged.

    A path is relative to `base`.  With `offline` (default: HF_HUB_OFFLINE) only downloads of
    earlier runs are used.  In a process a name means the same path until it ends.
    """
    reference = parse_reference(text, base)
    if reference is None:
        return text
    if reference not in _paths:
        _paths[reference] = str(
            download(reference, offline=is_offline() if offline is None else offline)
        )
    return _paths[reference]


def resolve_prepared(text: str, base: str = "") -> str:
    """Return the path of what `text` names, the download of an earlier process if there is one.

    Workers use it: the server has resolved the name before it starts them.
    """
    try:
        return resolve(text, base=base, offline=True)
    except NotFound:
        return resolve(text, base=base)


def resolve_options(
    options: Mapping[str, Any],
    resolve_file: Callable[[str], str] = resolve,
    resolve_adapter: Callable[[str], str] = resolve,
) -> dict[str, Any]:
    """Return the options of a language model with the paths of PATH_OPTIONS and of adapters."""
    resolved = dict(options)
    for option in PATH_OPTIONS:
        if isinstance(path := options.get(option), str | Path) and str(path):
            resolved[option] = resolve_file(str(path))
    if isinstance(adapters := options.get("adapters"), Mapping):
        resolved["adapters"] = {
            name: resolve_adapter(path) if isinstance(path, str) else path
            for name, path in adapters.items()
        }
    return resolved


def name_of(path: str) -> str:
    """Return the name for clients of a path that this process has resolved; else ""."""
    for reference, resolved in _paths.items():
        if os.path.realpath(os.path.dirname(resolved)) == os.path.realpath(
            os.path.dirname(path)
        ) and os.path.basename(resolved) == os.path.basename(path):
            return reference.title
    return ""


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids the network."""
    return os.environ.get(OFFLINE, "").lower() in _TRUE


def source_order() -> list[str]:
    """Return the schemes that are asked for a bare ORG/NAME."""
    known = [name for name, row in SOURCES.items() if row.form == "repository"]
    if not (order := os.environ.get(ORDER)):
        return known
    names = [name.strip() for name in order.split(",")]
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
    candidates = [replace(reference, scheme=scheme) for scheme in schemes]
    if offline:
        return _find_cached(reference, candidates)
    if reference.scheme == ANY:
        names = ", ".join(f"{scheme}://" for scheme in schemes)
        _say(f"{reference} is no path here: looking in {names} ({ORDER} sets the order)")
    errors: list[ServingError] = []
    for candidate in candidates:
        try:
            return _download(candidate, open_source(candidate.scheme))
        except (NotFound, Unreachable, NotInstalled) as error:
            errors.append(error)
    raise combined(errors, schemes)


def combined(errors: Sequence[ServingError], schemes: Sequence[str]) -> ServingError:
    """Return one error of those of all sources: a missing library counts if there is no other."""
    pairs = [
        pair for pair in zip(schemes, errors, strict=True) if type(pair[1]) is not NotInstalled
    ]
    if len(pairs) < 2:
        return pairs[0][1] if pairs else errors[0]
    if all(isinstance(error, Unreachable) for _, error in pairs):
        remaining = " and ".join(f"{scheme}://" for scheme, _ in pairs[1:])
        return Unreachable(f"{pairs[0][1]}; {remaining} cannot be reached either")
    return NotFound("; ".join(str(error) for _, error in pairs))


def _say(text: str) -> None:
    """Print a line on stderr, which is no error of a log."""
    log.tell(text, is_warning=True)


def _find_cached(reference: Reference, candidates: Sequence[Reference]) -> Path:
    names: list[str] = []
    for candidate in candidates:
        try:
            source = open_source(candidate.scheme)
        except NotInstalled:
            if len(candidates) == 1:
                raise
            continue
        path = source.find_cached(candidate)
        if path is not None:
            return entry_of(path, candidate.file)
        names += [model.reference.name for model in source.list_cached()]
    names = sorted(set(names))
    shown = ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
    known = did_you_mean(reference.name, names) or (f"; downloaded are {shown}" if names else "")
    if reference.name in names:
        known = "; what is there is of another revision or file, or not complete"
    raise NotFound(
        f"{reference} is not downloaded, and downloads are off (--offline, {OFFLINE}){known}"
    )


def _download(reference: Reference, source: Source) -> Path:
    is_pinned = _PINNED.fullmatch(reference.revision)
    if is_pinned and (path := source.find_cached(reference)):
        return entry_of(path, reference.file)
    try:
        download = plan_download(reference, source)
    except Unreachable as error:
        path = source.find_cached(reference)
        if path is None:
            raise
        _say(f"{error}; using the download of an earlier run: {path}")
        return entry_of(path, reference.file)
    listing, selection = download.listing, download.selection
    licence = listing.licence if listing.licence.isprintable() else ""
    _say(
        f"{reference} at {listing.revision}: {len(selection.files)} files, "
        f"{format_size(selection.size)}" + (f", licence {licence}" if licence else "")
    )
    with show_progress(selection.size) as report:
        return download.fetch(report)


def format_size(size: float) -> str:
    """Return bytes with a unit: "1.5 GB"."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"


@contextmanager
def show_progress(total: int) -> Iterator[Callable[[int], None]]:
    """Hold a progress bar on a terminal, else a line for each tenth.  Threads may share it."""
    lock = Lock()
    if sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(total=total, unit="B", unit_scale=True, desc="Download", delay=0.5) as bar:

            def update(count: int) -> None:
                with lock:
                    bar.update(count)

            yield update
        return
    done, tenths = 0, -1

    def report(count: int) -> None:
        nonlocal done, tenths
        with lock:
            done += count
            reached = done * 10 // total if total else 0
            is_first = tenths < 0  # of files that are there
            is_new, tenths = reached > tenths, max(reached, tenths)
            if is_new and not is_first:
                _say(f"downloaded {tenths * 10}%: {format_size(done)} of {format_size(total)}")

    yield report
