"""Server of other commands: `serve` as a child process on a port of this machine.

It knows no models and no engines; its users give the arguments of `serve`.
"""

import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from mindspore_serving.cli.serve import KEYS
from mindspore_serving.errors import StartError
from mindspore_serving.process.child import Child, Program, exit_text

_HOST = "127.0.0.1"
_READY = "Ready after"  # the beginning of a line of `serve`
_ERROR = re.compile("mindspore-serving(?: serve)?: ")
_END_SECONDS = 60.0  # within which a server without requests ends


class ChildServer:
    """Server that has been started; `url` is its address."""

    def __init__(self, url: str, child: Child, output: TextIO, errors: TextIO) -> None:
        self.url = url
        self._child, self._output, self._errors = child, output, errors

    def wait_until_ready(self) -> None:
        """Wait until all models are loaded.  Raises StartError with the error of `serve`."""
        if not any(line.startswith(_READY) for line in self._output):
            raise StartError(self.end_text())

    @property
    def exit_status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._child.poll()

    def terminate(self) -> None:
        """Ask the server to end."""
        self._child.terminate()

    def end_text(self) -> str:
        """Return why the server has ended, or ends now."""
        status = self._child.join()
        self._errors.seek(0)
        return _reason(self._errors.read()) or exit_text(status)


@contextmanager
def child_server(words: Sequence[str], *, key: str = "", port: int = 0) -> Iterator[ChildServer]:
    """Run `serve` with `words` for the block, on `port`, 0 for a free one.

    Clients must send `key`, if it is not "". The server ends with the block, and with this process.
    """
    with (
        _reserved(port) as number,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
    ):
        words = [*words, "--strict", "--host", _HOST, "--http-port", str(number), "--no-grpc"]
        reading, writing = os.pipe2(os.O_CLOEXEC)
        with open(reading, encoding="utf-8", errors="replace") as output:
            with open(writing, "wb") as printed:
                program = Program(
                    __name__,
                    ["serve", *words],
                    variables={KEYS: key},
                    stdout=printed.fileno(),
                    stderr=errors.fileno(),
                )
                child = Child(program)
            try:
                yield ChildServer(f"http://{_HOST}:{number}", child, output, errors)
            finally:
                _end(child)


@contextmanager
def _reserved(port: int) -> Iterator[int]:
    """Reserve a free port for the block, if `port` is 0; otherwise it is `port`.

    The bound socket keeps the system from giving the port to another process. It does not listen,
    and reuses addresses, so a server can listen on the port.
    """
    if port:
        yield port
        return
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_HOST, 0))
        yield holder.getsockname()[1]


def _reason(errors: str) -> str:
    """Return the last error in the output of `serve` as one line; "" if there is none."""
    return " ".join(_ERROR.split(errors)[-1].split())


def _end(child: Child) -> None:
    child.terminate()
    with suppress(TimeoutError):
        child.join(_END_SECONDS)
    child.close()


if __name__ == "__main__":
    from mindspore_serving.cli import main
    from mindspore_serving.process.entry import tie_to_parent

    sys.exit(main(tie_to_parent(sys.argv[1:])))
