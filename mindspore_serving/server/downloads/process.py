"""A process that downloads, as the master sees it; lives on the event loop."""

import asyncio
import socket
from collections.abc import Callable

from mindspore_serving.errors import Cancelled, ServingError, StartError, from_code
from mindspore_serving.process.async_channel import AsyncChannel
from mindspore_serving.process.child import Child, Program, exit_text
from mindspore_serving.process.vocabulary import Failed
from mindspore_serving.server.downloads.child import REMOVE
from mindspore_serving.server.downloads.messages import (
    DownloadRefused,
    FromDownload,
    Planned,
    Received,
)

_MODULE = "mindspore_serving.server.downloads.child"


class DownloadProcess:
    """A process that downloads or removes a model; `ended` is its result."""

    def __init__(
        self, on_planned: Callable[[Planned], None], on_received: Callable[[int], None]
    ) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._on_planned, self._on_received = on_planned, on_received

    def take(self, message: FromDownload) -> None:
        """Handle a message of the process."""
        if isinstance(message, Planned):
            self._on_planned(message)
        elif isinstance(message, Received):
            self._on_received(message.count)
        elif isinstance(message, DownloadRefused):
            self.fail(from_code(message.code, message.text))
        elif isinstance(message, Failed):
            self.fail(ServingError(message.text))
        elif not self.ended.done():
            self.ended.set_result(message.path)

    def fail(self, error: ServingError) -> None:
        """End with `error`, unless there is a result."""
        if not self.ended.done():
            self.ended.set_exception(error)


async def download(
    name: str, on_planned: Callable[[Planned], None], on_received: Callable[[int], None]
) -> str:
    """Download the model `name` in a process; return the path to serve.

    The process is killed if the caller is cancelled. Raises ServingError.
    """
    return await _run([name], DownloadProcess(on_planned, on_received))


async def remove(name: str) -> None:
    """Remove the model `name` from the cache of its source in a process.  Raises ServingError."""
    await _run([name, REMOVE], DownloadProcess(lambda _: None, lambda _: None))


async def _run(words: list[str], running: DownloadProcess) -> str:
    try:
        child = Child(Program(_MODULE, words, channel=socket.SOCK_STREAM))
    except OSError as error:
        raise StartError(f"no process for the download can be started: {error}") from error
    channel: AsyncChannel[FromDownload] = AsyncChannel(
        child.stream,
        FromDownload,
        on_message=running.take,
        on_closed=lambda: running.fail(Cancelled("the download was stopped")),
        on_problem=lambda problem: running.fail(ServingError(f"the download failed: {problem}")),
    )
    try:
        return await running.ended
    except Cancelled:
        status = exit_text(await child.wait())
        raise ServingError(f"the process of the download has ended: {status}") from None
    finally:
        child.kill()
        await asyncio.shield(child.wait())
        channel.close()
