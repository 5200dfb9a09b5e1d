"""Certificates and API keys of all listeners, which are reloaded when their files change."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.frontends.key_file import KeyFile, read_key_file
from mindspore_serving.frontends.keys import Keys, TenantTable
from mindspore_serving.frontends.tenants.issuers import TokenVerifier
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.server import file_watch
from mindspore_serving.server.file_watch import WatchedFiles
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.server.processes.messages import Admission
from mindspore_serving.server.ssl_config import SSLConfig
from mindspore_serving.tls import Certificates, Pem, end_of, paths_of, read


class Renewal:
    """Certificates and API keys, shared by listeners with the same files.

    `on_renewed` is called after each change, to inform front-end processes.
    """

    def __init__(self, on_renewed: Callable[[], Awaitable[None]]) -> None:
        self._on_renewed = on_renewed
        self._certificates: dict[SSLConfig, Certificates] = {}
        self._keys: dict[str, Keys] = {}
        self.tenants = TenantTable()
        self._watched: list[WatchedFiles[Any]] = []
        self._task: asyncio.Task[None] | None = None

    def certificates(
        self, tls: SSLConfig | None, *, as_the_original: bool = False
    ) -> Certificates | None:
        """Return the certificates of a listener, None without TLS.

        Raises StartError naming the invalid file.  With `as_the_original` a missing file raises
        FileNotFoundError, as in MindSpore Serving 1 and 2.
        """
        if tls is None:
            return None
        if as_the_original:
            for path in paths_of(tls):
                os.stat(path)
        if tls not in self._certificates:
            files = WatchedFiles("the certificate and its key", paths_of(tls), partial(read, tls))
            certificates = self._certificates[tls] = Certificates(tls, files.value)
            self._follow(files, certificates.replace)
        return self._certificates[tls]

    def keys(self, options: FrontEndOptions) -> Keys:
        """Return the API keys of a listener.  Raises StartError or InvalidInputs for its file."""
        path = options.key_file
        if path is None:
            return Keys(options.api_keys, self.tenants)
        if path not in self._keys:
            files = WatchedFiles("the API keys", [path], partial(read_key_file, path))
            keys = self._keys[path] = Keys((), self.tenants)
            self._use(keys, files.value)
            self._follow(files, partial(self._use, keys))
        return self._keys[path]

    def _use(self, keys: Keys, content: KeyFile) -> None:
        """Accept the keys and tokens of a file.  Raises StartError if a library is missing."""
        issuers = content.issuers
        tokens = TokenVerifier(issuers, self.tenants) if issuers else None
        keys.replace(content.keys)
        keys.tokens = tokens

    def admission(self, options: FrontEndOptions) -> Admission:
        """Return the current API keys and certificate, for a front-end process."""
        certificates = self.certificates(options.ssl_config)
        pem = None if certificates is None else certificates.pem
        return Admission([tenant.key for tenant in self.keys(options).tenants.values()], pem)

    def add_metrics(self, page: Page) -> None:
        """Add the numbers of reloads, and the end dates of certificates."""
        for files in self._watched:
            path = files.paths[0]
            page.add("serving_file_reloads_total", files.num_renewed, path, "ok")
            page.add("serving_file_reloads_total", files.num_failed, path, "failed")
            end = end_of(files.value.certificate) if isinstance(files.value, Pem) else None
            if end is not None:
                name = "serving_certificate_expiry_timestamp_seconds"
                page.add(name, end.timestamp(), path)

    def cancel(self) -> None:
        """Stop watching the files."""
        if self._task is not None:
            self._task.cancel()

    def _follow(self, files: WatchedFiles[Any], use: Callable[[Any], None]) -> None:
        files.use = use
        self._watched.append(files)
        if self._task is None:
            self._task = asyncio.create_task(self._poll_forever())

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(file_watch.POLL_SECONDS)
            try:
                await self._poll()
            except Exception:  # an unexpected error must not end the polling
                log.error("checking certificates and API keys for changes failed", exc_info=True)

    async def _poll(self) -> None:
        for files in list(self._watched):
            await on_thread("renewal", files.poll)
        renewed = [files for files in self._watched if files.renew()]
        if renewed:
            await self._on_renewed()
        for files in renewed:
            files.log_renewed()
