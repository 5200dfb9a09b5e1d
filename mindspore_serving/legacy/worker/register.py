"""`from mindspore_serving.worker import register` of versions 1.1 to 1.4: see `server.register`."""

from typing import Any

from mindspore_serving.server import register

__all__ = [name for name in vars(register) if not name.startswith("_")]


def __getattr__(name: str) -> Any:
    return getattr(register, name)
