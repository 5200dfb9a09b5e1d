"""The model repository: loads, replaces and unloads servables by name, or as their files change.

Lives on the event loop; fingerprints of files are computed on a thread.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.core.deployment import Deployment, RefusedServable
from mindspore_serving.core.servable_options import SERVABLE
from mindspore_serving.core.service import Changes, ModelState, ServableReadiness
from mindspore_serving.core.traffic import ROUTING, check_versions
from mindspore_serving.errors import NotFound, ServingError, StartError
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.servable.fingerprint import Fingerprint, fingerprint
from mindspore_serving.servable.foreign import formats

MAX_SHOWN = 128  # characters of a client's name in an error
UNLOAD_SECONDS = 60.0  # within which a servable that is unloaded may finish its requests

DeploymentSource = Callable[[], Sequence[Deployment | RefusedServable]]
"""Returns the deployments to serve, by the current configuration and files."""
Roll = Callable[[Sequence[Deployment], Sequence[Deployment], float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AvailableVersion:
    """A version to serve, and the fingerprint of its files."""

    deployment: Deployment
    files: Fingerprint


class ModelRepository:
    """The servables that are available and those that are deployed.

    A name is served from the source given to `begin`, or from its own one of `add`:

        available -(load, or files changed twice alike)-> deployed -(unload)-> unloaded
                         |
                         +-(error)-> failed: retried when its files change, or by name

    Args:
        roll: starts deployments and then withdraws others, see `master.master.Master.roll`.
        deployed: returns the current deployments.
        readiness: returns the readiness of each.
        set_route: splits the requests to a servable by the traffic rule of a deployment.
    """

    def __init__(
        self,
        roll: Roll,
        deployed: Callable[[], Sequence[Deployment]],
        readiness: Callable[[], Sequence[ServableReadiness]],
        set_route: Callable[[Deployment], None] = lambda _: None,
    ) -> None:
        self._set_route = set_route
        self._roll = roll
        self._deployed = deployed
        self._readiness = readiness
        self._source: DeploymentSource = lambda: ()
        self._added: dict[str, DeploymentSource] = {}  # by name; they override `_source`
        self._files: dict[tuple[str, int], Fingerprint] = {}  # of deployed versions, when loaded
        self._failed: dict[str, list[AvailableVersion]] = {}  # by name: versions that did not load
        self._failures: dict[str, str] = {}  # by name: the reasons
        self._refused: dict[
            str, str
        ] = {}  # by name: reasons of invalid servables, at the last scan
        self._reported: dict[str, str] = {}  # of those, the ones that were logged
        self._unloaded: set[str] = set()  # names that `follow` does not load again
        self._changes: dict[str, Changes] = {}  # by name: settings of clients
        self._generations = itertools.count(1)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._last: dict[str, list[AvailableVersion]] = {}  # at the last scan
        self._tasks: set[asyncio.Task[None]] = set()  # that load and unload
        self._scan: asyncio.Task[dict[str, list[AvailableVersion]]] | None = None  # for clients

    async def begin(
        self, first: Sequence[Deployment | RefusedServable], source: DeploymentSource
    ) -> list[Deployment]:
        """Return the deployments of `first`, and read `source` at later scans.

        A ServingError of `source` is reported to the caller of the scan.  Raises InvalidInputs for
        traffic to a version that is not among `first`.
        """
        self._source = source
        deployments = self._without_refused(first)
        self._reported = self._refused
        self._last = await on_thread("files", add_fingerprints, deployments)
        for name, versions in self._last.items():
            _check_routing(name, versions)
        for version in itertools.chain(*self._last.values()):
            self._files[key_of(version.deployment)] = version.files
        return deployments

    def on_failed(self, name: str, error: ServingError) -> None:
        """Record that the versions of `name` in `begin` could not be loaded.

        They are not retried until their files change, or `name` is loaded by name.
        """
        self._failed[name], self._failures[name] = self._last.get(name, []), str(error)

    async def add(self, name: str, source: DeploymentSource) -> None:
        """Serve `name` from a source of its own, now and when it is loaded again.

        Raises as `load`; nothing is added then.
        """
        before = self._added.get(name)
        self._added[name] = source
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
        """Serve the versions of `name` that are available now.

        A version is reloaded if its files or settings have changed, or if `is_forced`.  Other
        versions are withdrawn when these are ready.  `changes` are fields of the deployments, kept
        until the next load by name.

        Raises NotFound if the servable does not exist, StartError if it cannot be loaded; the
        deployed versions go on serving then.
        """
        if name not in await self._scan_files():  # before a lock of that name is created
            if name in self._refused:
                raise StartError(f"servable '{name}' cannot be loaded: {self._refused[name]}")
            raise NotFound(f"There is no servable '{name[:MAX_SHOWN]}' to be loaded")
        await self._to_the_end(self._load(name, changes or {}, is_forced=is_forced))

    async def unload(self, name: str, seconds: float = UNLOAD_SECONDS) -> None:
        """Withdraw all versions of `name`; running requests may finish within `seconds`.

        Raises NotFound if it is not loaded.
        """
        if not self._deployed_versions(name):
            raise NotFound(f"Servable '{name[:MAX_SHOWN]}' is not loaded")
        await self._to_the_end(self._unload(name, seconds))

    async def remove(self, name: str) -> None:
        """Unload a servable of `add`, if it is loaded, and serve it no more."""
        self._added.pop(name, None)
        with suppress(NotFound):
            await self.unload(name)
        self._unloaded.discard(name)
        self._forget_failure(name)

    def find(self, name: str) -> Deployment | None:
        """Return the newest deployed version of `name`; None if there is none."""
        versions = self._deployed_versions(name)
        return versions[max(versions)] if versions else None

    async def index(self) -> list[ModelState]:
        """Return the state of deployed, available and invalid versions, see `ModelControl`."""
        try:
            available = await self._scan_files()
        except ServingError:  # it is unknown what could be loaded
            available = {}
        states = [
            ModelState(
                row.name, row.version, True, row.is_ready, row.reason, row.loaded is not None
            )
            for row in self._readiness()
        ]
        names = {state.name for state in states}
        for entry in itertools.chain(*available.values()):
            name, version = key_of(entry.deployment)
            if name not in names:
                reason = self._failures.get(name, "it is not loaded")
                states.append(ModelState(name, version, False, False, reason))
        names |= available.keys()
        states += (
            ModelState(name, 0, False, False, reason)
            for name, reason in self._refused.items()
            if name not in names
        )
        return states

    def add_metrics(self, page: Page) -> None:
        """Add to `page` which versions could not be loaded."""
        shown = {(row.name, row.version): 0 for row in self._readiness()}
        names = {name for name, _ in shown} | self._failed.keys()
        shown |= {(name, 0): 1 for name in self._refused.keys() - names}
        for name in self._failed.keys() - self._unloaded:
            current = self._deployed_versions(name)
            new = (version for version in self._failed[name] if self._is_new(version, current))
            shown |= {key_of(version.deployment): 1 for version in new}
        for (name, version), failed in sorted(shown.items()):
            page.add("serving_load_failed", failed, name, str(version))

    async def follow(self, seconds: float) -> None:
        """Scan the files every `seconds` seconds, forever, and serve what has changed."""
        reported = ""
        while True:
            await asyncio.sleep(seconds)
            try:
                available, text = await on_thread("files", self._find_available), ""
                await self._follow(available)
            except ServingError as error:
                text = str(error)
            except Exception as error:
                log.error("scanning for servables failed", exc_info=True)
                text = str(error)
            if text and text != reported:
                log.warning("servables stay as they are: %s", text)
            reported = text

    async def _load(self, name: str, changes: Changes, *, is_forced: bool) -> None:
        async with self._locks[name]:
            before = self._changes.get(name, {})
            self._changes[name] = changes
            try:
                versions = (await on_thread("files", self._find_available)).get(name)
                if versions is None:
                    raise NotFound(f"There is no servable '{name}' to be loaded any more")
                self._unloaded.discard(name)
                await self._replace(name, versions, is_forced=is_forced)
            except BaseException:
                self._changes[name] = before
                raise

    async def _unload(self, name: str, seconds: float) -> None:
        async with self._locks[name]:
            self._unloaded.add(name)
            await self._roll((), list(self._deployed_versions(name).values()), seconds)

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end even if the caller is cancelled, so that no worker is lost."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        await asyncio.shield(task)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved; the caller has got it, if it still waits

    async def _scan_files(self) -> dict[str, list[AvailableVersion]]:
        """Return the available versions for clients; concurrent callers share one scan."""
        if self._scan is None or self._scan.done():
            self._scan = asyncio.ensure_future(on_thread("files", self._find_available))
        return await asyncio.shield(self._scan)

    async def _follow(self, available: dict[str, list[AvailableVersion]]) -> None:
        last, self._last = self._last, available
        for name in self._failed.keys() - available.keys():
            self._forget_failure(name)
        for name, reason in self._refused.items() - self._reported.items():
            log.warning("servable %s stays as it is: %s", name, reason)
        self._reported = self._refused
        names = {*available, *(deployment.name for deployment in self._deployed())}
        names -= self._unloaded | self._refused.keys()
        # Act on the second scan with the same result: files may still be being copied.
        settled = [name for name in names if available.get(name) == last.get(name)]
        await asyncio.gather(*(self._adapt(name, available.get(name, [])) for name in settled))

    async def _adapt(self, name: str, versions: list[AvailableVersion]) -> None:
        """Serve versions that have not changed between two scans."""
        if self._locks[name].locked() or (versions and self._failed.get(name) == versions):
            return
        async with self._locks[name]:
            try:
                await self._replace(name, versions)
            except ServingError as error:
                log.error("servable %s stays as it is: %s", name, error)

    async def _replace(
        self, name: str, available: Sequence[AvailableVersion], *, is_forced: bool = False
    ) -> None:
        """Serve the versions `available`, and no others of that name."""
        if available:
            _check_routing(name, available)
        current = self._deployed_versions(name)
        new = [version for version in available if is_forced or self._is_new(version, current)]
        loaded = {version.deployment.version_number for version in new}
        kept = {version.deployment.version_number for version in available} - loaded
        old = [deployment for number, deployment in current.items() if number not in kept]
        if available and not new:
            self._set_route(available[0].deployment)
        if not new and not old:
            return
        started = [
            replace(version.deployment, generation=next(self._generations)) for version in new
        ]
        log.info(
            "servable %s: loads %s, unloads %s",
            name,
            sorted(loaded),
            sorted(deployment.version_number for deployment in old),
        )
        try:
            for deployment in started:
                if line := await on_thread("files", formats.note, deployment):
                    log.warning("%s", line)
            await self._roll(started, old, UNLOAD_SECONDS)
        except ServingError as error:
            self._failed[name], self._failures[name] = list(available), str(error)
            raise
        self._forget_failure(name)
        for version in new:
            self._files[key_of(version.deployment)] = version.files

    def _forget_failure(self, name: str) -> None:
        self._failed.pop(name, None)
        self._failures.pop(name, None)

    def _is_new(self, version: AvailableVersion, current: dict[int, Deployment]) -> bool:
        """Return whether settings or files of a version differ from what is deployed."""
        deployment = version.deployment
        running = current.get(deployment.version_number)
        if running is None or _without_route(running) != _without_route(deployment):
            return True
        return self._files.get(key_of(deployment)) != version.files

    def _deployed_versions(self, name: str) -> dict[int, Deployment]:
        return {
            deployment.version_number: deployment
            for deployment in self._deployed()
            if deployment.name == name
        }

    def _find_available(self) -> dict[str, list[AvailableVersion]]:
        """Return the available versions by name.  Blocks on files.  Raises ServingError."""
        deployments = self._without_refused(self._source())
        deployments = [entry for entry in deployments if entry.name not in self._added]
        added = (entry for source in self._added.values() for entry in source())
        deployments += (entry for entry in added if isinstance(entry, Deployment))
        return add_fingerprints(
            [replace(entry, **self._changes.get(entry.name, {})) for entry in deployments]
        )

    def _without_refused(self, entries: Sequence[Deployment | RefusedServable]) -> list[Deployment]:
        """Return the deployments of `entries`, and record the invalid servables."""
        refused = (entry for entry in entries if isinstance(entry, RefusedServable) and entry.name)
        self._refused = {entry.name: entry.reason for entry in refused}
        return [entry for entry in entries if isinstance(entry, Deployment)]


def add_fingerprints(deployments: Sequence[Deployment]) -> dict[str, list[AvailableVersion]]:
    """Return `deployments` with the fingerprints of their files, by name."""
    available: dict[str, list[AvailableVersion]] = {}
    for entry in deployments:
        files = fingerprint(
            entry.servable_directory, entry.servable_name, entry.version_number, entry.weights
        )
        available.setdefault(entry.name, []).append(AvailableVersion(entry, files))
    return available


def _check_routing(name: str, versions: Sequence[AvailableVersion]) -> None:
    """Raise InvalidInputs if requests would go to a version of `name` that is not among these."""
    numbers = [version.deployment.version_number or 1 for version in versions]
    for version in versions:
        check_versions(name, version.deployment, numbers)


def _without_route(deployment: Deployment) -> Deployment:
    """Return what workers depend on of a deployment."""
    return replace(deployment, generation=0, **NO_ROUTE)


NO_ROUTE: dict[str, Any] = {name: SERVABLE[name].default for name in ROUTING}


def key_of(deployment: Deployment) -> tuple[str, int]:
    """Return name and version number of a deployment."""
    return deployment.name, deployment.version_number
