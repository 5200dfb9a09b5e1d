"""Advice on errors of a servable_config.py: a library to install, a line, a name that is near.

It knows Python's errors, not what a servable declares.
"""

import inspect
import re
import sys
from difflib import get_close_matches
from typing import Any

from mindspore_serving.errors import did_you_mean

_KEYWORD = re.compile(r"(?:\w+\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_MAX_LINE = 200  # characters of a line that is shown
_NEAR = 0.85  # least similarity to a module of Python: 'jsn', but not 'cv2', which is like 'csv'
_OURS = __name__.partition(".")[0]


def advise(error: BaseException) -> str:
    """Return the advice for `error`, which follows its text: "; ..." or ""."""
    if isinstance(error, SyntaxError) and error.text:
        return f"; the line is {error.text.strip()[:_MAX_LINE]!r}"
    if isinstance(error, ModuleNotFoundError):
        return _of_module(error.name or "")
    if isinstance(error, ImportError):
        name = _missing_name(error)
        module = sys.modules.get(error.name or "")
        return did_you_mean(name, dir(module)) if name and module else ""
    if isinstance(error, AttributeError | NameError):
        known = dir(error.obj) if isinstance(error, AttributeError) else _names(error)
        return did_you_mean(error.name or "", known)
    if isinstance(error, TypeError):
        return _of_keyword(error)
    return ""


def _of_module(name: str) -> str:
    """Return how to install a module, in the environment of this process."""
    from mindspore_serving import extras  # which reads the metadata of packages

    top = name.partition(".")[0]
    if top == _OURS:
        parent, _, last = name.rpartition(".")
        package = sys.modules.get(parent)
        return did_you_mean(last, dir(package)) if package else ""
    if near := get_close_matches(top, sys.stdlib_module_names, 1, _NEAR):
        return f"; did you mean {near[0]!r}?"
    return f"; {extras.advice(name)} (with the pip of {sys.executable})"


def _missing_name(error: ImportError) -> str:
    match = re.match(r"cannot import name '(\w+)'", str(error))
    return match[1] if match else ""


def _names(error: BaseException) -> list[str]:
    """Return the names that the failing line of a NameError can see."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return [] if trace is None else [*trace.tb_frame.f_locals, *trace.tb_frame.f_globals]


def _of_keyword(error: TypeError) -> str:
    """Return the parameters of the function that got an unexpected one, if it is public."""
    match = _KEYWORD.match(str(error))
    function: Any = (
        getattr(sys.modules.get(f"{_OURS}.server.register"), match[1], None) if match else None
    )
    if match is None or not callable(function):
        return ""
    known = list(inspect.signature(function).parameters)
    return did_you_mean(match[2], known) or f"; expected {', '.join(known)}"
