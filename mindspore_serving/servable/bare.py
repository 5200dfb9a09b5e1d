"""Servables without servable_config.py: a model file, alone or in a directory of any name.

Accepted are FILE, NAME/FILE and NAME/VERSION/FILE. It finds the file and loads nothing.
"""

import os
import re
from collections.abc import Iterator

from mindspore_serving import file_check
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import StartError
from mindspore_serving.hub.resolve import name_of
from mindspore_serving.servable.model_files import SUFFIXES, ModelFile, find_models, recognize

_SHOWN = 5  # max names of files in an error
_PIECE = re.compile(r"-\d{5}-of-\d{5}\Z")


def versions(root: str) -> list[int]:
    """Return the version directories of `root`, ascending: numbers from 1, no leading zeros."""
    if not os.path.isdir(root):
        return []
    names = [name for name in os.listdir(root) if name.isascii() and name.isdigit()]
    directories = [name for name in names if os.path.isdir(os.path.join(root, name))]
    return sorted(int(name) for name in directories if not name.startswith("0"))


def file_alias(directory: str, name: str) -> str:
    """Return the name of a model file for clients, without its suffix; "" for a directory.

    A model that was downloaded has the name that was given, and one in several files has no number
    of a piece in its name.
    """
    if title := name_of(os.path.join(directory, name)):
        return title
    is_file = os.path.isfile(os.path.join(directory, name))
    return _PIECE.sub("", os.path.splitext(name)[0]) if is_file else ""


def is_bare(root: str, *, allow_pickle: bool = False) -> bool:
    """Return whether `root` is a model file that is served, or contains one.

    Of several version directories one is enough.
    """
    return any(
        file.format for _, files in _model_files(root, allow_pickle=allow_pickle) for file in files
    )


def has_model_file(root: str, *, allow_pickle: bool = False) -> bool:
    """Return whether there is a file of a known model format at `root`, served or not."""
    return any(files for _, files in _model_files(root, allow_pickle=allow_pickle))


def find_bare_model(
    root: str, version: int, *, allow_pickle: bool = False, file_name: str = ""
) -> DeclaredModel:
    """Return the model of one version of `root`; without version directories that is 1.

    It is `file_name`; by default the only file, or of several the one called "model". Raises
    StartError if there is none, or several without that.
    """
    if file_name:
        return _named_model(root, version, file_name, allow_pickle=allow_pickle)
    files_by_version = dict(_model_files(root, allow_pickle=allow_pickle))
    files = [file for file in files_by_version.get(version, []) if file.format]
    if len(files) > 1:
        named = [file for file in files if os.path.splitext(file.name)[0] == "model"]
        files = named if len(named) == 1 else files
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise StartError(
            f"There is more than one model in '{_directory(root, version)}': {names}; keep one, "
            "serve one by its own path, or write a servable_config.py"
        )
    if not files:
        raise StartError(why_not(root, version, allow_pickle=allow_pickle))
    (file,) = files
    inside = file.name if versions(root) or os.path.isfile(root) else f"../{file.name}"
    return DeclaredModel(file.name, file.format, (inside,), allow_pickle=allow_pickle)


def _named_model(root: str, version: int, file_name: str, *, allow_pickle: bool) -> DeclaredModel:
    path = os.path.join(_directory(root, version), file_name)
    if os.path.isdir(path):  # as of a SavedModel
        files = find_models(path, allow_pickle=allow_pickle)
        file = files[0] if len(files) == 1 else None
        inside = f"{file_name}/{file.name}" if file is not None else file_name
    else:
        file = recognize(path, allow_pickle=allow_pickle, is_named=True)
        inside = file_name
    if file is None or not file.format:
        near = "" if os.path.exists(path) else " does not exist"
        reason = near or f" {file.why_not if file else 'is of no known format'}"
        raise StartError(f"The model file '{path}'{reason}; known are {SUFFIXES}")
    inside = inside if versions(root) else f"../{inside}"
    return DeclaredModel(file_name, file.format, (inside,), allow_pickle=allow_pickle)


def why_not(root: str, version: int = 0, *, allow_pickle: bool = False) -> str:
    """Return why nothing at `root` is served: each known file, with what to do."""
    texts = [
        f"{_prefix(root, number)}{file.name} {file.why_not}"
        for number, files in _model_files(root, allow_pickle=allow_pickle)
        for file in files
        if not file.format and version in (0, number)
    ]
    if texts:
        return "; ".join(texts)
    if os.path.isfile(root) and root.endswith(".py"):
        location = os.path.dirname(root)
        name = os.path.basename(root)
        network = f", or a network of this file by its class, as {name}:Net"
        return f"'{root}' is Python: serve the directory of a servable_config.py" + (
            f", '{location}'" if name == "servable_config.py" else network
        )
    if os.path.isfile(root):
        unknown = f"is not a known model file; known are {SUFFIXES}"
        return f"'{root}' {file_check.why_no_model(root) or unknown}"
    version = version or max(versions(root), default=0)
    location = f"version {version} of '{root}'" if versions(root) else f"'{root}'"
    unfinished = file_check.unfinished(_directory(root, version))
    names = sorted(os.listdir(_directory(root, version)))
    more = ", ..." if len(names) > _SHOWN else ""
    shown = f"{', '.join(names[:_SHOWN])}{more}" if names else "nothing"
    return f"{location} has no model file, it has {shown}{unfinished}"


def _model_files(root: str, *, allow_pickle: bool) -> Iterator[tuple[int, list[ModelFile]]]:
    """Iterate over the versions, with the model files of each."""
    if os.path.isfile(root):
        file = recognize(root, allow_pickle=allow_pickle, is_named=True)
        yield 1, [file] if file is not None else []
        return
    for number in versions(root) or [1]:
        yield number, find_models(_directory(root, number), allow_pickle=allow_pickle)


def _directory(root: str, version: int) -> str:
    return os.path.join(root, str(version)) if version and versions(root) else root


def _prefix(root: str, version: int) -> str:
    """Return what precedes the name of a file in an error."""
    if os.path.isfile(root):
        return ""
    return f"{version}/" if versions(root) else f"{os.path.basename(root)}/"
