"""A servable without servable_config.py: a model file, alone or in a directory under any name.

Accepted are FILE, NAME/FILE and NAME/VERSION/FILE.  Finds the file; loads nothing.
"""

import os
from collections.abc import Iterator

from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import StartError
from mindspore_serving.servable.model_files import SUFFIXES, ModelFile, find_models, recognize

_SHOWN = 5  # names of files in an error


def versions(root: str) -> list[int]:
    """The version directories of `root`, ascending: numbers from 1, without leading zeros."""
    if not os.path.isdir(root):
        return []
    names = [name for name in os.listdir(root) if name.isascii() and name.isdigit()]
    found = [name for name in names if os.path.isdir(os.path.join(root, name))]
    return sorted(int(name) for name in found if not name.startswith("0"))


def file_alias(directory: str, name: str) -> str:
    """What clients call a model file: its name without the ending; "" for a directory."""
    return os.path.splitext(name)[0] if os.path.isfile(os.path.join(directory, name)) else ""


def is_bare(root: str, *, allow_pickle: bool = False) -> bool:
    """Whether `root` is a model file that is served, or has one at a place where it is looked for.

    With several version directories one of them is enough.
    """
    return any(
        file.format for _, files in _places(root, allow_pickle=allow_pickle) for file in files
    )


def has_model_file(root: str, *, allow_pickle: bool = False) -> bool:
    """Whether there is a file of a known kind of model at `root`, served or not."""
    return any(files for _, files in _places(root, allow_pickle=allow_pickle))


def find_bare_model(root: str, version: int, *, allow_pickle: bool = False) -> DeclaredModel:
    """The model of one version of `root`; of a file, and of files beside each other, that is 1.

    Of several, that with the name "model" is meant.  Raises StartError if there is none, or several
    without it.
    """
    places = dict(_places(root, allow_pickle=allow_pickle))
    found = [file for file in places.get(version, []) if file.format]
    if len(found) > 1:
        named = [file for file in found if os.path.splitext(file.name)[0] == "model"]
        found = named if len(named) == 1 else found
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise StartError(
            f"There is more than one model in '{_directory(root, version)}': {names}; keep one, "
            "serve one by its own path, or write a servable_config.py"
        )
    if not found:
        raise StartError(why_not(root, version, allow_pickle=allow_pickle))
    (file,) = found
    inside = file.name if versions(root) or os.path.isfile(root) else f"../{file.name}"
    return DeclaredModel(file.name, file.format, (inside,), allow_pickle=allow_pickle)


def why_not(root: str, version: int = 0, *, allow_pickle: bool = False) -> str:
    """Why nothing at `root` is served: each file that is known, with what to do."""
    texts = [
        f"{_beside(root, number)}{file.name} {file.why_not}"
        for number, files in _places(root, allow_pickle=allow_pickle)
        for file in files
        if not file.format and version in (0, number)
    ]
    if texts:
        return "; ".join(texts)
    if os.path.isfile(root) and root.endswith(".py"):
        where = os.path.dirname(root)
        return f"'{root}' is Python: serve the directory of a servable_config.py" + (
            f", '{where}'" if os.path.basename(root) == "servable_config.py" else ""
        )
    if os.path.isfile(root):
        return f"'{root}' is no model file that is known; known are {SUFFIXES}"
    version = version or max(versions(root), default=0)
    where = f"version {version} of '{root}'" if versions(root) else f"'{root}'"
    names = sorted(os.listdir(_directory(root, version)))
    more = ", ..." if len(names) > _SHOWN else ""
    held = f"{', '.join(names[:_SHOWN])}{more}" if names else "nothing"
    return f"{where} has no model file, it has {held}"


def _places(root: str, *, allow_pickle: bool) -> Iterator[tuple[int, list[ModelFile]]]:
    """Where models are looked for: each version with the files in it."""
    if os.path.isfile(root):
        file = recognize(root, allow_pickle=allow_pickle, applies=True)
        yield 1, [file] if file is not None else []
        return
    for number in versions(root) or [1]:
        yield number, find_models(_directory(root, number), allow_pickle=allow_pickle)


def _directory(root: str, version: int) -> str:
    return os.path.join(root, str(version)) if version and versions(root) else root


def _beside(root: str, version: int) -> str:
    """What an error puts before the name of a file."""
    if os.path.isfile(root):
        return ""
    return f"{version}/" if versions(root) else f"{os.path.basename(root)}/"
