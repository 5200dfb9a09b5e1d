"""Stores of the caches of answers, which are bound to methods by what their answers depend on."""

import asyncio
from collections.abc import Iterable
from typing import TypeAlias

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import reason
from mindspore_serving.hub.source import cache_directory
from mindspore_serving.master.registry import ServableService
from mindspore_serving.master.shared_answers import (
    MAGIC,
    MAX_STORED,
    AnswerLevel,
    AnswerThreads,
)
from mindspore_serving.servable.contents import MAX_FILES, ReadFiles, digest_of, read_files
from mindspore_serving.stores.base import StoreOptions
from mindspore_serving.stores.file_hashes import FileHashes
from mindspore_serving.stores.kinds import open_store, read_secret
from mindspore_serving.stores.sealing import HEAD_BYTES, Seal

_Options: TypeAlias = tuple[object, ...]


class AnswerStores:
    """The stores of a master's deployments.

    A level belongs to the contents of a version's files when its workers loaded them.  They are
    compared before and after, and for each further worker: files that change under a version end
    the sharing of its answers until it is loaded again.
    """

    def __init__(self) -> None:
        self._stores: dict[_Options, tuple[AnswerThreads, bytes]] = {}  # with the secret
        self._hashes: FileHashes | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, deployments: Iterable[Deployment]) -> None:
        """Open the stores of `deployments`.  Raises StartError; a store that is gone is logged."""
        for deployment in deployments:
            key = _options_of(deployment)
            if deployment.cache_store and key not in self._stores:
                secret = read_secret("cache_store_key", deployment.cache_store_key)
                options = StoreOptions(
                    "cache_store",
                    deployment.cache_store,
                    max_bytes=int(deployment.cache_store_mb * (1 << 20)),
                    value_bytes=HEAD_BYTES + MAX_STORED,
                    max_seconds=deployment.cache_seconds,
                    timeout=deployment.cache_store_timeout,
                )
                store, num_readers = await on_thread("answers", open_store, options)
                threads = AnswerThreads(store, num_readers, options.timeout)
                self._stores[key] = threads, secret

    async def look(self, deployment: Deployment) -> ReadFiles | None:
        """Return the files that a worker is about to load; None if no answers are shared."""
        if not deployment.cache_store:
            return None
        if deployment.gang is not None:
            log.warning("%s runs on other machines: it shares no answers", deployment.name)
            return None
        files = await on_thread("files of answers", read_files, deployment)
        if files is None:
            log.warning("%s has over %d files: it shares no answers", deployment.name, MAX_FILES)
        return files

    def join(self, service: ServableService, files: ReadFiles | None) -> None:
        """Bind the methods of a service, of which a worker has loaded `files`, to their store."""
        if files is None:
            return
        if service.files is None:
            service.files = files
        if service.files != files:
            self._end(service)
            return
        task = asyncio.create_task(self._bind(service, files))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Write the answers that are queued, and close the stores."""
        stores, self._stores = [threads for threads, _ in self._stores.values()], {}
        for threads in stores:
            await on_thread("answers", threads.close)

    async def _bind(self, service: ServableService, files: ReadFiles) -> None:
        deployment = service.deployment
        try:
            digest = await on_thread("contents", self._digest, deployment, files)
        except OSError as error:
            log.warning("%s shares no answers: %s", deployment.name, reason(error))
            return
        if digest is None or service.files != files:
            self._end(service)
            return
        threads, secret = self._stores[_options_of(deployment)]
        for name, method in service.methods.items():
            is_bound = method.shared_answers is not None
            if method.cache is None or is_bound or method.report.calls:
                continue
            names = (deployment.name, service.version, name, method.cache.is_per_tenant)
            seal = Seal(MAGIC, repr(names).encode() + digest, secret)
            method.shared_answers = AnswerLevel(threads, seal, deployment.cache_seconds)
            log.info("%s.%s shares its answers by %s", deployment.name, name, threads)

    def _digest(self, deployment: Deployment, files: ReadFiles) -> bytes | None:
        if self._hashes is None:
            remembered = cache_directory("fingerprints")
            remembered.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._hashes = FileHashes(remembered)
        return digest_of(deployment, files, self._hashes)

    def _end(self, service: ServableService) -> None:
        if service.files != {}:
            log.warning(
                "files of servable %s have changed while it is served: it shares no answers until "
                "it is loaded again",
                service.name,
            )
        service.files = {}  # equal to those of no worker
        for method in service.methods.values():
            method.shared_answers = None


def _options_of(deployment: Deployment) -> _Options:
    return (
        deployment.cache_store,
        deployment.cache_store_key,
        deployment.cache_store_mb,
        deployment.cache_store_timeout,
        deployment.cache_seconds,
    )
