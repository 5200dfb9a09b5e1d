"""The model-repository extension.  Which models are there is in `models`; loading and unloading is
for whoever can do it: see `Repository`."""

from collections.abc import Mapping
from typing import Any, Protocol

from mindspore_serving.errors import Unsupported


class Repository(Protocol):
    """Brings servables and takes them away while the server runs."""

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load the servable `name`, or its newest version.  Raises ServingError."""
        ...

    async def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Raises ServingError."""
        ...


class NoRepository:
    """A server whose servables are those of its start."""

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        raise Unsupported(f"load of '{name[:256]}': loading models at run time is not available")

    async def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        raise Unsupported(
            f"unload of '{name[:256]}': unloading models at run time is not available"
        )
