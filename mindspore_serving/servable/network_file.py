"""Networks of Python files that the operator named, as net.py:Net: import, and framework.

It runs code of that file, which no other module finds: not by discovery, and not for a client.
"""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any, get_type_hints

from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.network import NetworkCode, parse_spec
from mindspore_serving.core.user_code import where
from mindspore_serving.errors import StartError, did_you_mean
from mindspore_serving.servable.from_source import FromSource, compile_all
from mindspore_serving.servable.import_advice import advise

CELL, MODULE = "mindspore", "pytorch_module"  # formats
_BASES = {("mindspore.nn.cell", "Cell"): CELL, ("torch.nn.modules.module", "Module"): MODULE}
_FRAMEWORKS = {"mindspore": CELL, "torch": MODULE}
NETWORKS = {"mindspore": CELL, "pytorch": MODULE}
"""Format in declare_model -> that of a network in code."""


def declare_network(path: str, code: NetworkCode) -> DeclaredModel:
    """Import the file at `path` and declare its network `code`.  Raises StartError."""
    factory = load_network(path, code.name)
    inputs = tuple(parse_spec(name, text) for name, text in code.inputs.items())
    return DeclaredModel(
        key=f"{os.path.basename(path)}:{code.name}",
        format=_format_of(path, factory),
        files=(code.weights,) if code.weights else (),
        factory=factory,
        arguments=dict(code.arguments),
        inputs=inputs,
        mode=code.mode,
    )


def load_network(path: str, name: str) -> Callable[..., Any]:
    """Import the file at `path` anew and return its class or function `name`.

    The files beside it can be imported by their names. Raises StartError with the line that failed.
    """
    directory = os.path.dirname(path)
    try:
        module = _import(path, directory)
    except (Exception, SystemExit) as error:
        raise StartError(
            f"import of '{path}' failed, {error} ({type(error).__name__}{where(error, directory)})"
            f"{advise(error)}"
        ) from error
    network = getattr(module, name, None)
    if inspect.isclass(network) or inspect.isfunction(network):
        return network
    known = list(_names_in(module))
    near = did_you_mean(name, known) or f": it has {', '.join(known) or 'none'}"
    raise StartError(f"'{path}' has no class or function '{name}'{near}")


def _import(path: str, directory: str) -> ModuleType:
    importlib.invalidate_caches()
    if directory not in sys.path:
        sys.path.append(directory)  # at the end, so that it hides no installed module
    compile_all(directory)
    stem = re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])
    known = find_spec(stem) if stem not in sys.modules else None
    is_free = known is not None and known.origin == path
    name = stem if is_free else f"network_{stem}"  # hides no module of that name
    spec = spec_from_file_location(name, path, loader=FromSource(name, path))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _names_in(module: ModuleType) -> Iterator[str]:
    """Iterate over the names of classes and functions that the file itself defines."""
    for name, value in vars(module).items():
        is_code = inspect.isclass(value) or inspect.isfunction(value)
        if is_code and value.__module__ == module.__name__ and name[0] != "_":
            yield name


def _format_of(path: str, factory: Callable[..., Any]) -> str:
    """Return the format of what `factory` makes: by its bases, the hint of its result, or imports.

    Raises StartError if none of them shows the framework.
    """
    kind = factory
    if not inspect.isclass(factory):
        try:
            kind = get_type_hints(factory).get("return", factory)
        except Exception:  # a hint may be any expression
            kind = factory
    for base in getattr(kind, "__mro__", ()):
        if (model_format := _BASES.get((base.__module__, base.__name__))) is not None:
            return model_format
    name = getattr(factory, "__name__", "")
    if inspect.isclass(factory):
        raise StartError(
            f"class '{name}' of '{path}' is no mindspore.nn.Cell and no torch.nn.Module"
        )
    used = _frameworks_of(sys.modules[factory.__module__])
    if len(used) == 1:
        return _FRAMEWORKS[used.pop()]
    raise StartError(
        f"function '{name}' of '{path}' does not say what it returns: write "
        f"`def {name}(...) -> nn.Cell:` of MindSpore, or `-> nn.Module:` of PyTorch"
    )


def _frameworks_of(module: ModuleType) -> set[str]:
    """Return the frameworks whose modules and classes are names in `module`."""
    owners = {
        str(getattr(value, "__module__", None) or getattr(value, "__name__", ""))
        for value in vars(module).values()
    }
    return {owner.partition(".")[0] for owner in owners} & _FRAMEWORKS.keys()
