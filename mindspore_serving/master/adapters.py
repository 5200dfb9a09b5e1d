"""LoRA adapters of language models, loaded and unloaded while the server runs.

All workers of a servable have the same adapters, including workers that start later.  It reads no
files: workers do.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from mindspore_serving import log
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidInputs, NotFound, ServableUnavailable, ServingError
from mindspore_serving.ipc.messages import AdapterSource
from mindspore_serving.master.link import Link
from mindspore_serving.master.registry import Registry, ServableService

Sources = Mapping[str, AdapterSource]  # by name


@dataclass(slots=True)
class _Changes:
    """Adapters of one servable, where they differ from its configuration."""

    configured: dict[str, str] = field(default_factory=dict)  # adapter name -> directory
    added: dict[str, AdapterSource] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    def sources(self) -> dict[str, AdapterSource]:
        kept = (item for item in self.configured.items() if item[0] not in self.removed)
        return {name: AdapterSource(name, path) for name, path in kept} | self.added


class ServedAdapters:
    """Adapters of all servables.  Lives on the event loop."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._changes: defaultdict[str, _Changes] = defaultdict(_Changes)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._generations = itertools.count(1)

    async def load(self, servable: str, name: str, path: str, *, in_place: bool = False) -> None:
        """Have all workers of `servable` load the adapter in directory `path`.

        A loaded adapter of the same name is replaced if `in_place`.

        Raises InvalidInputs, Overloaded, NotFound or ServableUnavailable; nothing has changed then.
        """
        async with self._locks[servable]:
            self._services(servable)
            changes = self._changes[servable]
            before = changes.sources()
            if name in before and not in_place:
                raise InvalidInputs(
                    f"The adapter '{name}' is loaded already; load_inplace replaces it"
                )
            source = AdapterSource(name, path, next(self._generations))
            try:
                await self._set(servable, {**before, name: source}, name)
            except BaseException:
                await asyncio.shield(self._restore(servable, before))
                raise
            changes.added[name] = source
            self._update_cards(servable)

    async def unload(self, servable: str, name: str) -> None:
        """Unload an adapter: new requests to `servable` cannot name it.  Raises NotFound."""
        async with self._locks[servable]:
            changes = self._changes[servable]
            if name not in changes.sources():
                raise NotFound(f"The adapter '{name}' is not loaded")
            changes.added.pop(name, None)
            changes.removed.add(name)
            self._update_cards(servable)
            await self._restore(servable, changes.sources())

    @asynccontextmanager
    async def joining(
        self, servable: str, link: Link, card: ModelCard | None
    ) -> AsyncIterator[ModelCard | None]:
        """Give a loaded worker the servable's adapters, and register it in the body of the context.

        Yields the worker's card with the adapters.
        """
        if card is None or not card.can_generate:
            yield card
            return
        async with self._locks[servable]:
            changes = self._changes[servable]
            changes.configured = dict(zip(card.adapters, card.adapter_paths, strict=True))
            sources = changes.sources()
            if set(sources) != set(card.adapters) or changes.added:
                faults = await link.adapter_calls.set(list(sources.values()))
                for name, fault in faults.items():
                    log.error("adapter %s is unloaded: %s: %s", name, link.name, fault.text)
                    changes.added.pop(name, None)
                    changes.removed.add(name)
                if faults:
                    self._update_cards(servable)
                    await self._restore(servable, changes.sources())
            yield _with(card, changes)

    def remove(self, servables: Iterable[str]) -> None:
        """Forget the adapters of servables that are no longer served."""
        for servable in servables:
            self._changes.pop(servable, None)

    def _services(self, servable: str) -> Sequence[ServableService]:
        """Return the services of a language model.  Raises NotFound or ServableUnavailable."""
        services = [service for service in self._registry.all if service.name == servable]
        services = [service for service in services if service.card]
        if not services:
            raise NotFound(f"There is no language model '{servable}'")
        if not any(service.workers for service in services):
            raise ServableUnavailable(f"The model '{servable}' has no worker now; try again")
        return services

    async def _set(self, servable: str, sources: Sources, name: str) -> None:
        """Set the adapters of all workers.

        Raises the error of a worker that fails to load the adapter `name`.
        """
        results = await asyncio.gather(
            *(link.adapter_calls.set(list(sources.values())) for link in self._links(servable)),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
            if name in result:
                raise result[name].to_error()

    async def _restore(self, servable: str, sources: Sources) -> None:
        """Set the adapters of all workers back to `sources`; ignore workers that have ended."""
        calls = (link.adapter_calls.set(list(sources.values())) for link in self._links(servable))
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, ServingError):
                raise result

    def _links(self, servable: str) -> list[Link]:
        services = [service for service in self._registry.all if service.name == servable]
        return [link for service in services for link in service.workers if link.owns_models]

    def _update_cards(self, servable: str) -> None:
        for service in self._registry.all:
            if service.name == servable and service.card is not None:
                service.card = _with(service.card, self._changes[servable])


def _with(card: ModelCard, changes: _Changes) -> ModelCard:
    sources = changes.sources()
    paths = tuple(source.path for source in sources.values())
    return msgspec.structs.replace(card, adapters=tuple(sources), adapter_paths=paths)
