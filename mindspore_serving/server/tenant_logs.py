"""Logs of what tenants do: audit, payloads and usage, opened by the options of the first server."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.core.server_options import ServerOptions
from mindspore_serving.errors import StartError, reason
from mindspore_serving.frontends.state.dialects import redacted
from mindspore_serving.frontends.tenants import usage_log
from mindspore_serving.frontends.tenants.audit import AuditLog
from mindspore_serving.frontends.tenants.line_file import LineQueue, RotatedFile
from mindspore_serving.frontends.tenants.metering import MeteredInference
from mindspore_serving.frontends.tenants.payloads import CloudEventWriter, PayloadLog, poster
from mindspore_serving.frontends.tenants.usage_log import WriteUsage
from mindspore_serving.metrics.exposition import Page

CLOSE_SECONDS = 5.0
T = TypeVar("T")


class TenantLogs:
    """The logs of a server, which `metered` writes to."""

    def __init__(self, metered: MeteredInference) -> None:
        self._metered = metered
        self._queues: dict[str, LineQueue] = {}
        self._usage: asyncio.Task[None] | None = None
        self._write_usage: WriteUsage | None = None

    def open(self, options: ServerOptions) -> None:
        """Open the logs of `options` that are not open.  Raises StartError."""
        metered, where = self._metered, options.payload_log
        if options.audit_log and metered.audit is None:
            file = _opened(options.audit_log, lambda: RotatedFile(options.audit_log))
            metered.audit = AuditLog(self._queue("audit", file.write).put)
        if where and metered.payloads is None:
            is_url = where.startswith(("http://", "https://"))
            write = poster(where) if is_url else _opened(where, lambda: RotatedFile(where)).write
            events = CloudEventWriter(write, options.payload_redact)
            queue = self._queue("payloads", events)
            metered.payloads = PayloadLog(queue.put, options.payload_rate)
        if options.usage_log and self._usage is None:
            where = options.usage_log
            self._write_usage = _opened(where, lambda: usage_log.writer_of(where))
            self._usage = asyncio.create_task(self._follow_usage())

    def _queue(self, name: str, write: Callable[..., None]) -> LineQueue:
        queue = self._queues[name] = LineQueue(name, write)
        return queue

    def add_metrics(self, page: Page) -> None:
        """Add the numbers of lines that were dropped."""
        for name, queue in self._queues.items():
            page.add("serving_tenant_log_dropped_total", queue.num_dropped, name)

    async def _follow_usage(self) -> None:
        while True:
            await asyncio.sleep(usage_log.SECONDS)
            await self._flush_usage()

    async def _flush_usage(self) -> None:
        rows = self._metered.usage.take_unwritten()
        if rows and self._write_usage is not None:
            try:
                await on_thread("usage", self._write_usage, rows)
            except Exception as error:  # of the disk or the database: it is tried again
                log.error("the usage of keys cannot be written: %s", error)
                self._metered.usage.put_back(rows)

    async def close(self) -> None:
        """Write what is queued, for some seconds at most."""
        if self._usage is not None:
            self._usage.cancel()
            flush = asyncio.create_task(self._flush_usage())
            await asyncio.wait([flush], timeout=CLOSE_SECONDS)
        for queue in self._queues.values():
            await queue.close(CLOSE_SECONDS)


def _opened(where: str, open_log: Callable[[], T]) -> T:
    """Return the opened log.  Raises StartError."""
    try:
        return open_log()
    except OSError as error:
        text = f"Serving Error: the log {redacted(where)} cannot be written: {reason(error)}"
        raise StartError(text) from None
    except ModuleNotFoundError as error:
        from mindspore_serving import extras

        text = extras.missing(error, "--usage-log with a URL of PostgreSQL")
        raise StartError(f"Serving Error: {text}") from None
