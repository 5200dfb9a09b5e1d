"""The declaration that is being filled while a servable_config.py is imported.

One context variable: it knows neither who imports nor what is declared.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mindspore_serving.core.declaration import Declaration
from mindspore_serving.errors import InvalidInputs

_current: ContextVar[Declaration | None] = ContextVar("declaration", default=None)


@contextmanager
def declaring(declaration: Declaration) -> Iterator[None]:
    """Inside the block, what this thread declares goes into `declaration`."""
    token = _current.set(declaration)
    try:
        yield
    finally:
        _current.reset(token)


def current(caller: str) -> Declaration:
    """The declaration being filled; raises InvalidInputs naming `caller` if there is none."""
    declaration = _current.get()
    if declaration is None:
        raise InvalidInputs(
            f"Failed to obtain the directory of servable_config.py: '{caller}' may only be called "
            "while the server imports a servable_config.py, in it or in a module it imports"
        )
    return declaration
