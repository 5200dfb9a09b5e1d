"""The certificates and API keys of all listeners: read once, and anew when their files change."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.frontends.key_file import read_keys
from mindspore_serving.frontends.keys import ApiKey, Keys, Tenant
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.server import watched
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.server.processes.messages import Admission
from mindspore_serving.server.ssl_config import SSLConfig
from mindspore_serving.server.watched import Watched
from mindspore_serving.tls import Certificates, Pem, end_of, paths_of, read


class Renewal:
    """Listeners with the same files have them in common.  After each change `on_renewed` is called:
    it tells who is in another process.
    """

    def __init__(self, on_renewed: Callable[[], Awaitable[None]]) -> None:
        self._on_renewed = on_renewed
        self._certificates: dict[SSLConfig, Certificates] = {}
        self._keys: dict[str, Keys] = {}
        self._holders: WeakValueDictionary[ApiKey, Tenant] = WeakValueDictionary()
        self._watched: list[Watched[Any]] = []
        self._task: asyncio.Task[None] | None = None

    def certificates(
        self, tls: SSLConfig | None, *, as_the_original: bool = False
    ) -> Certificates | None:
        """Those of a listener.  Raises StartError naming the file that cannot be used, and for one
        that is missing FileNotFoundError `as_the_original` did.
        """
        if tls is None:
            return None
        if as_the_original:
            for path in paths_of(tls):
                os.stat(path)
        if tls not in self._certificates:
            files = Watched("the certificate and its key", paths_of(tls), partial(read, tls))
            found = self._certificates[tls] = Certificates(tls, files.value)
            self._follow(files, found.replace)
        return self._certificates[tls]

    def keys(self, options: FrontEndOptions) -> Keys:
        """Those of a listener.  Raises StartError or InvalidInputs naming what is wrong."""
        path = options.key_file
        if path is None:
            return Keys(options.api_keys, self._holders)
        if path not in self._keys:
            files = Watched("the API keys", [path], partial(read_keys, path))
            found = self._keys[path] = Keys(files.value, self._holders)
            self._follow(files, found.replace)
        return self._keys[path]

    def admission(self, options: FrontEndOptions) -> Admission:
        """What a front-end process lets in now."""
        certificates = self.certificates(options.ssl_config)
        pem = None if certificates is None else certificates.pem
        return Admission([one.key for one in self.keys(options).tenants.values()], pem)

    def add_metrics(self, page: Page) -> None:
        for one in self._watched:
            path = one.paths[0]
            page.add("serving_file_reloads_total", one.num_renewed, path, "ok")
            page.add("serving_file_reloads_total", one.num_failed, path, "failed")
            end = end_of(one.value.certificate) if isinstance(one.value, Pem) else None
            if end is not None:
                name = "serving_certificate_expiry_timestamp_seconds"
                page.add(name, end.timestamp(), path)

    def cancel(self) -> None:
        """What changes from now on is not read."""
        if self._task is not None:
            self._task.cancel()

    def _follow(self, files: Watched[Any], use: Callable[[Any], None]) -> None:
        files.use = use
        self._watched.append(files)
        if self._task is None:
            self._task = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(watched.LOOK_SECONDS)
            try:
                await self._look()
            except Exception:  # one that nobody thought of must not be the last look
                log.error("a look for changed certificates and API keys failed", exc_info=True)

    async def _look(self) -> None:
        for one in list(self._watched):
            await on_thread("renewal", one.look)
        renewed = [one for one in self._watched if one.renew()]
        if renewed:
            await self._on_renewed()
        for one in renewed:
            one.tell()
