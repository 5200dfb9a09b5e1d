"""Downloads as they are planned, listed and removed: what `pull`, `list` and `remove` do.

A download is found first, by the network: the source that has the model, the revision that the name
means now, and the files to fetch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mindspore_serving.errors import InvalidInputs, NotFound, StartError, did_you_mean
from mindspore_serving.hub.reference import ANY, Reference, parse_reference
from mindspore_serving.hub.resolve import (
    OFFLINE,
    entry_of,
    is_offline,
    select_files,
    source_order,
)
from mindspore_serving.hub.selection import Selection, find_complete, is_weights
from mindspore_serving.hub.source import (
    CachedModel,
    Listing,
    NotInstalled,
    Source,
    Unreachable,
    open_source,
)
from mindspore_serving.hub.sources import SOURCES

_SHOWN = 5  # names in an error


@dataclass(frozen=True, slots=True)
class PlannedDownload:
    """Files of a model at a pinned revision; the scheme of `reference` is known."""

    reference: Reference
    listing: Listing
    selection: Selection
    source: Source = field(repr=False)

    def fetch(self, report: Callable[[int], None]) -> Path:
        """Download what is missing; return the path to serve.

        `report` gets increments of bytes, from any thread; an error that it raises stops the
        download. Raises ServingError.
        """
        path = self.source.fetch(self.reference, self.listing, self.selection.files, report)
        if self.listing.is_whole:
            return entry_of(path, "")
        entry = self.selection.entry
        return path / entry if entry and path.is_dir() else path


def parse_name(text: str) -> Reference:
    """Return the reference `text`.  Raises InvalidInputs for a path."""
    reference = parse_reference(text)
    if reference is None:
        known = ", ".join(f"{scheme}://" for scheme in SOURCES)
        raise InvalidInputs(f"{text!r} is no name of a model, expected ORG/NAME or one of {known}")
    return reference


def find_download(reference: Reference) -> PlannedDownload:
    """Ask the sources for the files of a model, in their order if it names none.

    Raises ServingError: no source has it, or none answers.
    """
    if is_offline():
        raise StartError(f"{reference} cannot be downloaded: downloads are off ({OFFLINE})")
    faults: list[StartError | NotFound] = []
    for candidate in _candidates(reference):
        try:
            source = open_source(candidate.scheme)
            listing = source.list_files(candidate)
            selection = select_files(listing, candidate)
            return PlannedDownload(candidate, listing, selection, source)
        except (NotFound, Unreachable, NotInstalled) as error:
            faults.append(error)
    raise faults[0] if len(faults) == 1 else StartError("; ".join(map(str, faults)))


def list_cached() -> list[CachedModel]:
    """Return the downloads of all sources whose packages are installed, the last used first."""
    models: list[CachedModel] = []
    for scheme in SOURCES:
        try:
            models += open_source(scheme).list_cached()
        except NotInstalled:  # so nothing was downloaded by it
            continue
    return sorted(models, key=lambda model: -model.used)


def find_cached(reference: Reference) -> list[CachedModel]:
    """Return the downloads that `reference` means: all revisions unless it names one.

    Raises NotFound naming what is near.
    """
    models = list_cached()
    schemes = [candidate.scheme for candidate in _candidates(reference)]
    matches = [model for model in models if model.reference.scheme in schemes]
    matches = [model for model in matches if _is_meant(model, reference)]
    if not matches:
        names = [str(replace(model.reference, revision="", file="")) for model in models]
        names = sorted({name.removeprefix("hf://") for name in names})
        shown = f"; downloaded are {', '.join(names[:_SHOWN])}" if names else ""
        more = ", ..." if len(names) > _SHOWN else ""
        near = did_you_mean(str(reference), names) or shown + more
        raise NotFound(f"{reference} is not downloaded{near}")
    return matches


def is_cached(reference: Reference) -> bool:
    """Return whether a revision of the model is downloaded, maybe in part."""
    models = open_source(reference.scheme).list_cached()
    return any(model.reference.name == reference.name for model in models)


def find_path(reference: Reference) -> tuple[Reference, Path] | None:
    """Return the path to serve of a complete download, with its reference; None without one."""
    for candidate in _candidates(reference):
        try:
            path = open_source(candidate.scheme).find_cached(candidate)
        except NotInstalled:
            continue
        if path is not None:
            return candidate, entry_of(path, candidate.file)
    return None


def remove(models: Sequence[CachedModel]) -> int:
    """Remove downloads; return the bytes freed.  Raises ServingError."""
    freed = 0
    for model in models:
        pinned = replace(model.reference, revision=model.revision)
        freed += open_source(model.reference.scheme).remove_cached(pinned)
    return freed


def format_of(path: Path) -> str:
    """Return the endings of a download's weights, as "safetensors"; "" if files are missing."""
    if path.is_file():
        return path.suffix.removeprefix(".")
    selection = find_complete(path)
    if selection is None:
        return ""
    endings = {Path(file.path).suffix for file in selection.files if is_weights(file)}
    return ", ".join(sorted(ending.removeprefix(".") for ending in endings))


def _candidates(reference: Reference) -> list[Reference]:
    schemes = source_order() if reference.scheme == ANY else [reference.scheme]
    return [replace(reference, scheme=scheme) for scheme in schemes]


def _is_meant(model: CachedModel, reference: Reference) -> bool:
    if model.reference.name != reference.name:
        return False
    revision = reference.revision
    return not revision or revision in (model.revision, model.reference.revision)
