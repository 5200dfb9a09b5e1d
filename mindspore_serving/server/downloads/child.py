"""Process that downloads the model that its command line names, or removes it from the cache.

It is killed to stop a download, and a later one goes on with the files that are there.
"""

import argparse
import threading
import time
from contextlib import closing
from typing import Any

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.hub import downloads
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Failed
from mindspore_serving.server.downloads.messages import (
    Downloaded,
    DownloadRefused,
    Planned,
    Received,
)

REMOVE = "--remove"
_INTERVAL = 0.2  # seconds between two messages about progress


class Progress:
    """Sum of the bytes that the threads of a download report, sent now and then."""

    def __init__(self, channel: BlockingChannel[Any]) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._count, self._sent = 0, 0.0

    def add(self, count: int) -> None:
        with self._lock:
            self._count += count
            now = time.monotonic()
            if now - self._sent >= _INTERVAL:
                self._sent = now
                self._channel.send(Received(self._count))


def download(name: str, channel: BlockingChannel[Any]) -> None:
    """Download a model and tell the parent about it.  Raises ServingError."""
    reference = downloads.parse_name(name)
    plan = downloads.find_download(reference)
    is_new = not downloads.is_cached(plan.reference)
    size = plan.selection.size
    channel.send(
        Planned(str(plan.reference), plan.listing.revision, size, plan.listing.licence, is_new)
    )
    path = plan.fetch(Progress(channel).add)
    channel.send(Received(size))
    channel.send(Downloaded(str(path)))


def remove(name: str, channel: BlockingChannel[Any]) -> None:
    """Remove all revisions of a model.  Raises ServingError."""
    downloads.remove(downloads.find_cached(downloads.parse_name(name)))
    channel.send(Downloaded())


def main() -> None:
    """Do what the command line says, until the channel is closed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument(REMOVE, action="store_true")
    arguments = enter(parser, ignores_signals=True)
    channel: BlockingChannel[Any] = BlockingChannel(connect(arguments.channel), Failed)
    with closing(channel):
        try:
            (remove if arguments.remove else download)(arguments.name, channel)
        except ServingError as error:
            channel.send(DownloadRefused(error.code, str(error)))
        except Exception as error:
            log.error("a download failed", exc_info=True)
            channel.send(Failed(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
