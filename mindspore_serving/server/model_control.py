"""Clients' access to the model repository: the index, and loading and unloading if allowed."""

from collections.abc import Sequence

from mindspore_serving.core.service import Changes, ModelState
from mindspore_serving.errors import Forbidden
from mindspore_serving.server.repository import ModelRepository


class ClientModelControl:
    """The `core.service.ModelControl` for clients, who name servables but cannot choose files."""

    def __init__(self, repository: ModelRepository, *, is_allowed: bool) -> None:
        self._repository = repository
        self.is_allowed = is_allowed

    async def index(self) -> Sequence[ModelState]:
        """Return the state of all versions of all servables."""
        return await self._repository.index()

    async def load(
        self, name: str, *, is_forced: bool = False, changes: Changes | None = None
    ) -> None:
        """Load or reload a servable, see `ModelRepository.load`.  Raises Forbidden."""
        self._check()
        await self._repository.load(name, is_forced=is_forced, changes=changes)

    async def unload(self, name: str) -> None:
        """Unload a servable, see `ModelRepository.unload`.  Raises Forbidden."""
        self._check()
        await self._repository.unload(name)

    def _check(self) -> None:
        if not self.is_allowed:
            raise Forbidden(
                "clients may not load and unload models on this server; --allow-loading, or "
                "allow_loading of the function that starts it, allows it"
            )
