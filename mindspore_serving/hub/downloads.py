"""Downloads as they are planned, listed and removed: what `pull`, `list` and `remove` do.

A download is found first, by the network: the source that has the model, the revision that the name
means now, and the files to fetch.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mindspore_serving.errors import (
    InvalidInputs,
    NotFound,
    ServingError,
    StartError,
    did_you_mean,
)
from mindspore_serving.hub.planning import PlannedDownload, plan_download
from mindspore_serving.hub.reference import ANY, Reference, parse_reference
from mindspore_serving.hub.resolve import OFFLINE, combined, is_offline, source_order
from mindspore_serving.hub.selection import entry_of, find_complete, is_weights
from mindspore_serving.hub.source import (
    CachedModel,
    NotInstalled,
    Unreachable,
    open_source,
)
from mindspore_serving.hub.sources import SOURCES

_TAG = "latest"  # of a name without a tag
_SHOWN = 5  # names in an error


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
    faults: list[ServingError] = []
    candidates = _candidates(reference)
    for candidate in candidates:
        try:
            return plan_download(candidate, open_source(candidate.scheme))
        except (NotFound, Unreachable, NotInstalled) as error:
            faults.append(error)
    raise combined(faults, [candidate.scheme for candidate in candidates])


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
    """Return the downloads that `reference` means: all commits of a repository unless it names one.

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
    return any(_is_meant(model, replace(reference, file="")) for model in models)


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
        freed += open_source(model.reference.scheme).remove_cached(_pinned(model))
    return freed


def format_of(model: CachedModel) -> str:
    """Return the endings of a download's weights, as "safetensors"; "" if files are missing."""
    path = open_source(model.reference.scheme).find_cached(_pinned(model))
    if path is None or path.is_file():
        return path.suffix.removeprefix(".") if path else ""
    selection = find_complete(path)
    if selection is None:
        return ""
    endings = {Path(file.path).suffix for file in selection.files if is_weights(file)}
    return ", ".join(sorted(ending.removeprefix(".") for ending in endings))


def _pinned(model: CachedModel) -> Reference:
    """Return the reference of a download: of a repository at its commit."""
    reference = model.reference
    is_repository = SOURCES[reference.scheme].form == "repository"
    return replace(reference, revision=model.revision) if is_repository else reference


def _candidates(reference: Reference) -> list[Reference]:
    schemes = source_order() if reference.scheme == ANY else [reference.scheme]
    return [replace(reference, scheme=scheme) for scheme in schemes]


def _is_meant(model: CachedModel, reference: Reference) -> bool:
    if model.reference.name != reference.name:
        return False
    revision, actual = reference.revision, model.reference.revision
    if SOURCES[model.reference.scheme].form == "tagged":
        return (revision or _TAG) in (model.revision, actual or _TAG)
    return not revision or revision in (model.revision, actual)
