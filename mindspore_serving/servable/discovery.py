"""Servables at a path of the command line, and what is not served there."""

import os
import re
from collections import Counter
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from mindspore_serving import errors, file_check
from mindspore_serving.core.deployment import RefusedServable
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.hub.reference import is_model_file
from mindspore_serving.servable import archive, bare
from mindspore_serving.servable.check import check_servable_name
from mindspore_serving.servable.foreign import formats, torchserve
from mindspore_serving.servable.loader import CONFIG_FILE
from mindspore_serving.servable.model_files import SUFFIXES, find_models, recognize
from mindspore_serving.servable.repository import (
    MODEL_CONFIG,
    is_language_model,
    is_servable,
    why_no_language_model,
)

_SHOWN = 5  # max reasons in an error
_unpacked: dict[str, TemporaryDirectory[str]] = {}  # by archive; removed when the process ends
_BESIDE = "lies beside directories of servables: give its own path to serve it"


@dataclass(frozen=True, slots=True)
class DiscoveredServables:
    """Servables as (directory, name), and refused ones with the reason."""

    servables: list[tuple[str, str]]
    refused: list[RefusedServable]


def discover(path: str, *, allow_pickle: bool = False) -> DiscoveredServables:
    """Return the servables at `path`: itself one, or those in it, by name.

    An archive stands for its directory: it is unpacked once, to a temporary directory that is
    removed when the process ends.

    Raises StartError if there is none, InvalidInputs if `path` has a name that cannot be served.
    """
    argument, path = path, os.path.abspath(path)
    if not os.path.exists(path):
        near = errors.did_you_mean(os.path.basename(path), _names(os.path.dirname(path)))
        if not near and re.fullmatch(r"[\w-]+/[\w.-]+", argument):  # as Qwen/Qwen3-0.6B
            near = f"; a repository of Hugging Face is written hf://{argument}"
        if (
            not near
            and re.fullmatch(r"[\w-]+[\w.]*(:[\w.-]+)?", argument)
            and not is_model_file(argument)
        ):
            near = f"; a model of Ollama's registry is written ollama://{argument}"
        raise StartError(f"There is no file or directory '{path}'{near}")
    try:
        return _discover(_directory_of(path), allow_pickle=allow_pickle)
    except OSError as error:
        raise StartError(f"'{path}' cannot be read: {error}") from None


def _directory_of(path: str) -> str:
    """Return the directory of an unpacked archive, named after it; `path` if it is none."""
    name = archive.stem(path) if os.path.isfile(path) and not recognize(path, is_named=True) else ""
    if not name:
        return path
    if path not in _unpacked:
        directory = TemporaryDirectory(prefix="mindspore-serving-")
        root = os.path.join(directory.name, name)
        os.mkdir(root)
        archive.unpack(path, root)
        _unpacked[path] = directory
    return os.path.join(_unpacked[path].name, name)


def _discover(path: str, *, allow_pickle: bool) -> DiscoveredServables:
    is_itself = is_servable(path, allow_pickle=allow_pickle)
    holds_models = os.path.isdir(path) and (not is_itself or _has_files_beside(path))
    inside = (
        _inside(path, allow_pickle=allow_pickle) if holds_models else DiscoveredServables([], [])
    )
    if inside.servables:
        return inside
    if is_itself and (files := _several_files(path, allow_pickle=allow_pickle)):
        return _by_file(path, files)
    if is_itself:
        directory, name = os.path.split(path)
        return DiscoveredServables([(directory, check_servable_name("servable_name", name))], [])
    raise StartError(_nothing(path, inside.refused, allow_pickle=allow_pickle))


def _has_files_beside(path: str) -> bool:
    """Return whether it is a servable only by a model file in it, so others can be beside that."""
    has_config = os.path.isfile(os.path.join(path, CONFIG_FILE)) or is_language_model(path)
    return not has_config and not bare.versions(path)


def _several_files(path: str, *, allow_pickle: bool) -> list[str]:
    """Return the model files of a directory of several, none of which is the directory's."""
    if not os.path.isdir(path) or not _has_files_beside(path) or formats.is_described(path):
        return []
    names = [file.name for file in find_models(path, allow_pickle=allow_pickle) if file.format]
    is_named = [os.path.splitext(name)[0] for name in names].count("model") == 1
    return names if len(names) > 1 and not is_named else []


def _by_file(directory: str, names: list[str]) -> DiscoveredServables:
    """Return each file as a servable of its name, but none of several that have the same."""
    discovered = DiscoveredServables([], [])
    counts = Counter(os.path.splitext(name)[0] for name in names)
    for name in names:
        stem = os.path.splitext(name)[0]
        if counts[stem] == 1:
            _add(discovered, directory, name)
            continue
        same = " and ".join(other for other in names if os.path.splitext(other)[0] == stem)
        reason = f"{same} would all be called {stem!r}: give the path of one, or rename the others"
        discovered.refused.append(RefusedServable("", f"{name}: {reason}"))
    return discovered


def _inside(directory: str, *, allow_pickle: bool) -> DiscoveredServables:
    discovered = DiscoveredServables([], [])
    for name in _names(directory):
        path = os.path.join(directory, name)
        if not os.path.isdir(path) and not torchserve.find(path):
            continue
        try:
            if is_servable(path, allow_pickle=allow_pickle):
                _add(discovered, directory, name)
            else:
                discovered.refused.append(_refuse(path, name, allow_pickle=allow_pickle))
        except OSError as error:
            discovered.refused.append(RefusedServable("", f"{name} cannot be read: {error}"))
    for file in find_models(directory, allow_pickle=allow_pickle):
        if "/" not in file.name:
            discovered.refused.append(RefusedServable("", f"{file.name} {file.why_not or _BESIDE}"))
    return discovered


def _refuse(path: str, name: str, *, allow_pickle: bool) -> RefusedServable:
    """Return why the directory `path` is not served; with its name only if it holds a model."""
    reason = why_no_language_model(path) or bare.why_not(path, allow_pickle=allow_pickle)
    if bare.has_model_file(path, allow_pickle=allow_pickle):
        return RefusedServable(name, reason)
    return RefusedServable("", f"{name}: {reason}")


def _add(discovered: DiscoveredServables, directory: str, name: str) -> None:
    try:
        discovered.servables.append((directory, check_servable_name("servable_name", name)))
    except InvalidInputs as error:
        discovered.refused.append(RefusedServable(name, str(error)))


def _names(directory: str) -> list[str]:
    if not os.path.isdir(directory):
        return []
    return sorted(name for name in os.listdir(directory) if name[0] not in "._")


def _nothing(path: str, refused: list[RefusedServable], *, allow_pickle: bool) -> str:
    if os.path.isfile(path):
        return bare.why_not(path, allow_pickle=allow_pickle)
    if why := why_no_language_model(path) or file_check.unfinished(path).removeprefix("; "):
        return f"There is no servable in '{path}': {why}"
    shown = [*map(str, refused[:_SHOWN])] + ["..."] * (len(refused) > _SHOWN)
    more = "".join(f"; {text}" for text in shown)
    return (
        f"There is no servable in '{path}': neither it nor a directory in it has a "
        f"{CONFIG_FILE}, a language model's {MODEL_CONFIG}, or one model file such as net.onnx "
        f"or 1/model.onnx ({SUFFIXES}){more}"
    )
