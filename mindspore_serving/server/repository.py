"""Which servables run: loaded, replaced and unloaded by name, or as their files change.

Lives on the event loop; what looks at files runs on a thread.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.core.deployment import Deployment, RefusedServable
from mindspore_serving.core.service import Changes, ModelState, ServableReadiness
from mindspore_serving.errors import NotFound, ServingError, StartError
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.servable.fingerprint import Fingerprint, fingerprint

MOST_SHOWN = 128  # characters of a name that a client gave
UNLOAD_SECONDS = 60.0  # that a servable which leaves may take for what it has

Wanted = Callable[[], Sequence[Deployment | RefusedServable]]
Roll = Callable[[Sequence[Deployment], Sequence[Deployment], float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """A version that is to be served, and its files."""

    deployment: Deployment
    files: Fingerprint


class ModelRepository:
    """What can be served, and what is.

    Args:
        roll: starts deployments and then ends others; see `master.master.Master.roll`.
        deployed: gives what is deployed.
        readiness: gives which of it is ready.
    """

    def __init__(
        self,
        roll: Roll,
        deployed: Callable[[], Sequence[Deployment]],
        readiness: Callable[[], Sequence[ServableReadiness]],
    ) -> None:
        self._roll = roll
        self._deployed = deployed
        self._readiness = readiness
        self._wanted: Wanted = lambda: ()
        self._added: dict[str, Wanted] = {}  # by name, in place of what those give
        self._files: dict[tuple[str, int], Fingerprint] = {}  # of what is deployed, when it was
        self._failed: dict[str, list[FoundVersion]] = {}  # what could not be loaded
        self._failures: dict[str, str] = {}  # ... and why
        self._refused: dict[str, str] = {}  # by name: why it is not even tried, at the last look
        self._told: dict[str, str] = {}  # of those, what the log has
        self._unloaded: set[str] = set()  # by name: they stay so until they are loaded by name
        self._changes: dict[str, Changes] = {}  # by name: what clients have other than is wanted
        self._generations = itertools.count(1)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._last: dict[str, list[FoundVersion]] = {}  # at the last look
        self._tasks: set[asyncio.Task[None]] = set()  # that load and unload
        self._looking: asyncio.Task[dict[str, list[FoundVersion]]] | None = None  # for clients

    async def begin(
        self, first: Sequence[Deployment | RefusedServable], wanted: Wanted
    ) -> list[Deployment]:
        """The deployments of `first`, which are served now, and later what `wanted` gives, when
        somebody asks for it.  Its ServingErrors are reported to them.
        """
        self._wanted = wanted
        deployments = self._without_refused(first)
        self._told = self._refused
        self._last = await on_thread("files", look_at, deployments)
        for one in itertools.chain(*self._last.values()):
            self._files[key_of(one.deployment)] = one.files
        return deployments

    def on_failed(self, name: str, error: ServingError) -> None:
        """What `begin` was given under `name` could not be loaded: it is not tried again before its
        files change, or somebody asks for it.
        """
        self._failed[name], self._failures[name] = self._last.get(name, []), str(error)

    async def add(self, name: str, wanted: Wanted) -> None:
        """Serve `name` as `wanted` gives it, now and when it is loaded anew.  Raises as `load`;
        then nothing is added.
        """
        before = self._added.get(name)
        self._added[name] = wanted
        try:
            await self.load(name)
        except BaseException:
            self._added.pop(name)
            if before is None:
                self._forget_failure(name)
            else:
                self._added[name] = before
            raise

    async def load(
        self, name: str, *, is_forced: bool = False, changes: Changes | None = None
    ) -> None:
        """Serve the versions of `name` that there are now, each anew if its files or settings have
        changed, or if `is_forced`; others of it leave when these are ready.  `changes` are fields
        of its deployments, which keep them until it is loaded by name again.

        Raises NotFound if there is no such servable, StartError if it cannot be loaded; then what
        is served goes on.
        """
        if name not in await self._look():  # before there is a lock of that name
            if name in self._refused:
                raise StartError(f"servable '{name}' cannot be loaded: {self._refused[name]}")
            raise NotFound(f"There is no servable '{name[:MOST_SHOWN]}' to be loaded")
        await self._to_the_end(self._load(name, changes or {}, is_forced=is_forced))

    async def unload(self, name: str, seconds: float = UNLOAD_SECONDS) -> None:
        """Serve `name` no more: it answers what it has, for at most so many seconds.  Raises
        NotFound if it is not served.
        """
        if not self._deployed_as(name):
            raise NotFound(f"Servable '{name[:MOST_SHOWN]}' is not loaded")
        await self._to_the_end(self._unload(name, seconds))

    async def index(self) -> list[ModelState]:
        """See `core.service.ModelControl`."""
        try:
            found = await self._look()
        except ServingError:  # nobody can say what could be loaded
            found = {}
        states = [
            ModelState(
                one.name, one.version, True, one.is_ready, one.reason, one.loaded is not None
            )
            for one in self._readiness()
        ]
        names = {state.name for state in states}
        for one in itertools.chain(*found.values()):
            name, version = one.deployment.name, one.deployment.version_number
            if name not in names:
                reason = self._failures.get(name, "it is not loaded")
                states.append(ModelState(name, version, False, False, reason))
        names |= found.keys()
        states += (
            ModelState(name, 0, False, False, reason)
            for name, reason in self._refused.items()
            if name not in names
        )
        return states

    def add_metrics(self, page: Page) -> None:
        """Put on `page` which versions could not be loaded."""
        shown = {(one.name, one.version): 0 for one in self._readiness()}
        names = {name for name, _ in shown} | self._failed.keys()
        shown |= {(name, 0): 1 for name in self._refused.keys() - names}
        for name in self._failed.keys() - self._unloaded:
            current = {one.version_number: one for one in self._deployed_as(name)}
            new = (one for one in self._failed[name] if self._is_new(one, current))
            shown |= {key_of(one.deployment): 1 for one in new}
        for (name, version), failed in sorted(shown.items()):
            page.add("serving_load_failed", failed, name, str(version))

    async def follow(self, seconds: float) -> None:
        """For ever: look at the files so often, and serve what is there."""
        reported = ""
        while True:
            await asyncio.sleep(seconds)
            try:
                found, text = await on_thread("files", self._find), ""
                await self._follow(found)
            except ServingError as error:
                text = str(error)
            except Exception as error:
                log.error("looking for servables", exc_info=True)
                text = str(error)
            if text and text != reported:
                log.warning("servables stay as they are: %s", text)
            reported = text

    async def _load(self, name: str, changes: Changes, *, is_forced: bool) -> None:
        async with self._locks[name]:
            before = self._changes.get(name, {})
            self._changes[name] = changes
            try:
                found = (await on_thread("files", self._find)).get(name)
                if found is None:
                    raise NotFound(f"There is no servable '{name}' to be loaded any more")
                self._unloaded.discard(name)
                await self._replace(name, found, is_forced=is_forced)
            except BaseException:
                self._changes[name] = before
                raise

    async def _unload(self, name: str, seconds: float) -> None:
        async with self._locks[name]:
            self._unloaded.add(name)
            await self._roll((), self._deployed_as(name), seconds)

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, also if who waits for it leaves: workers are not to be forgotten half-way."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        await asyncio.shield(task)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # is seen by who waits, if somebody does

    async def _look(self) -> dict[str, list[FoundVersion]]:
        """What is to be served now, for clients: all that ask meanwhile wait for one look."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(on_thread("files", self._find))
        return await asyncio.shield(self._looking)

    async def _follow(self, found: dict[str, list[FoundVersion]]) -> None:
        last, self._last = self._last, found
        for name in self._failed.keys() - found.keys():
            self._forget_failure(name)
        for name, reason in self._refused.items() - self._told.items():
            log.warning("servable %s stays as it is: %s", name, reason)
        self._told = self._refused
        names = {*found, *(one.name for one in self._deployed())} - self._unloaded
        names -= self._refused.keys()
        settled = [name for name in names if found.get(name) == last.get(name)]
        await asyncio.gather(*(self._adapt(name, found.get(name, [])) for name in settled))

    async def _adapt(self, name: str, found: list[FoundVersion]) -> None:
        """Serve `found`, which has not changed between two looks."""
        if self._locks[name].locked() or (found and self._failed.get(name) == found):
            return
        async with self._locks[name]:
            try:
                await self._replace(name, found)
            except ServingError as error:
                log.error("servable %s stays as it is: %s", name, error)

    async def _replace(
        self, name: str, found: Sequence[FoundVersion], *, is_forced: bool = False
    ) -> None:
        """Serve `found`, and nothing else of that name."""
        current = {one.version_number: one for one in self._deployed_as(name)}
        new = [one for one in found if is_forced or self._is_new(one, current)]
        versions = {one.deployment.version_number for one in new}
        kept = {one.deployment.version_number for one in found} - versions
        old = [one for version, one in current.items() if version not in kept]
        if not new and not old:
            return
        started = [replace(one.deployment, generation=next(self._generations)) for one in new]
        log.info(
            "servable %s: loads %s, unloads %s",
            name,
            sorted(versions),
            sorted(one.version_number for one in old),
        )
        try:
            await self._roll(started, old, UNLOAD_SECONDS)
        except ServingError as error:
            self._failed[name], self._failures[name] = list(found), str(error)
            raise
        self._forget_failure(name)
        for one in new:
            self._files[key_of(one.deployment)] = one.files

    def _forget_failure(self, name: str) -> None:
        self._failed.pop(name, None)
        self._failures.pop(name, None)

    def _is_new(self, found: FoundVersion, current: dict[int, Deployment]) -> bool:
        deployment = found.deployment
        running = current.get(deployment.version_number)
        if running is None or replace(running, generation=0) != replace(deployment, generation=0):
            return True
        return self._files.get(key_of(deployment)) != found.files

    def _deployed_as(self, name: str) -> list[Deployment]:
        return [one for one in self._deployed() if one.name == name]

    def _find(self) -> dict[str, list[FoundVersion]]:
        """What is to be served now.  Raises ServingError."""
        given = self._without_refused(self._wanted())
        given = [one for one in given if one.name not in self._added]
        added = (one for own in self._added.values() for one in own())
        given += (one for one in added if isinstance(one, Deployment))
        return look_at([replace(one, **self._changes.get(one.name, {})) for one in given])

    def _without_refused(self, found: Sequence[Deployment | RefusedServable]) -> list[Deployment]:
        """The deployments of `found`; the rest is noted."""
        refused = (one for one in found if isinstance(one, RefusedServable) and one.name)
        self._refused = {one.name: one.reason for one in refused}
        return [one for one in found if isinstance(one, Deployment)]


def look_at(deployments: Sequence[Deployment]) -> dict[str, list[FoundVersion]]:
    """`deployments` with their files, by name."""
    found: dict[str, list[FoundVersion]] = {}
    for one in deployments:
        files = fingerprint(one.servable_directory, one.servable_name, one.version_number)
        found.setdefault(one.name, []).append(FoundVersion(one, files))
    return found


def key_of(deployment: Deployment) -> tuple[str, int]:
    return deployment.name, deployment.version_number
