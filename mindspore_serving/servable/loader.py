"""Import of one servable_config.py, which returns its declaration.

It knows modules and where user code failed, not versions, devices or models.
"""

import importlib
import os
import re
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location

from mindspore_serving.core.declaration import Declaration
from mindspore_serving.core.user_code import where
from mindspore_serving.errors import StartError
from mindspore_serving.servable.check import check_servable_name
from mindspore_serving.servable.from_source import FromSource, compile_all
from mindspore_serving.servable.hf_model import add_task_method
from mindspore_serving.servable.import_advice import advise
from mindspore_serving.servable.method_builder import declaring

CONFIG_FILE = "servable_config.py"

_imported: set[str] = set()  # packages of servables that were loaded before


def load(servable_directory: str, servable_name: str) -> Declaration:
    """Import `{servable_name}.servable_config` anew and return its declaration.

    The servable's directory is a package while and after it is imported: `from . import sibling`
    and `import {servable_name}.sibling` work, and modules beside the servable can be imported. A
    servable with the name of an existing module (say, "json") is imported under another name, so
    that neither hides the other; relative imports work there as well.

    Raises InvalidInputs for a bad name; StartError if there is no servable_config.py, if anything
    in it fails (with the error, the file and the line), or if it registers no method.
    """
    check_servable_name("servable_name", servable_name)
    directory = os.path.abspath(servable_directory)
    path = os.path.join(directory, servable_name)
    if not os.path.isfile(os.path.join(path, CONFIG_FILE)):
        raise StartError(
            f"import {servable_name}.servable_config failed, there is no file "
            f"'{os.path.join(path, CONFIG_FILE)}'"
        )
    declaration = Declaration(servable_name)
    with declaring(declaration):
        try:
            _import_config(directory, servable_name)
        except (Exception, SystemExit) as error:
            raise StartError(
                f"import {servable_name}.servable_config failed, {error} "
                f"({type(error).__name__}{where(error, path)}){advise(error)}"
            ) from error
    if not declaration.methods and declaration.language is None and len(declaration.tasks) == 1:
        add_task_method(declaration, *declaration.tasks.values())
    if not declaration.methods and declaration.language is None:
        raise StartError(
            f"There is no method registered for servable '{servable_name}', decorate a function "
            f"of '{os.path.join(path, CONFIG_FILE)}' by register_method"
        )
    return declaration


def _import_config(directory: str, servable_name: str) -> None:
    if servable_name in _imported:
        _forget(servable_name)
    importlib.invalidate_caches()
    if directory not in sys.path:
        sys.path.append(directory)  # at the end, so that it hides no installed module
    path = os.path.join(directory, servable_name)
    package = _package_name(servable_name, path)
    _forget(package)
    _imported.add(package)
    _open_package(package, path)
    importlib.import_module(f"{package}.servable_config")


def _forget(package: str) -> None:
    """Drop the modules of an earlier load, so that this load runs them again."""
    for module in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        del sys.modules[module]


def _package_name(servable_name: str, path: str) -> str:
    """Return the servable's name, or another if it cannot be imported or is another module."""
    if "." not in servable_name and servable_name not in sys.modules:
        spec = find_spec(servable_name)
        origin = spec.origin if spec is not None else None
        if origin is None or os.path.dirname(os.path.abspath(origin)) == path:
            return servable_name
    return "servable_" + re.sub(r"\W", "_", servable_name)


def _open_package(package: str, path: str) -> None:
    """Add the package of this directory to sys.modules."""
    init = os.path.join(path, "__init__.py")
    if os.path.isfile(init):
        spec = spec_from_file_location(
            package, init, loader=FromSource(package, init), submodule_search_locations=[path]
        )
    else:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [path]
    assert spec is not None
    compile_all(path)
    module = sys.modules[package] = module_from_spec(spec)
    if spec.loader is not None and spec.origin is not None:
        spec.loader.exec_module(module)
