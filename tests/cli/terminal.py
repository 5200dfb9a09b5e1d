"""A command with a terminal around it, that a test types into and looks at."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cli.commands import environment
from tests.waiting import PATIENCE, eventually


class Terminal:
    """Ended with the `with` block.  `home` is where the command keeps its history."""

    def __init__(
        self, words: Sequence[str], home: Path, *, columns: int = 0, **variables: str
    ) -> None:
        self._end, inner = pty.openpty()
        if columns:
            fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.text = ""
        state = {"TERM": "dumb", "XDG_STATE_HOME": str(home), "INPUTRC": "/dev/null"}
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT", *words],  # a shell's background jobs ignore it
            cwd=home,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**environment(), **state, **variables},
            start_new_session=True,
        )
        os.close(inner)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._end)

    def type(self, line: str) -> None:
        """Type `line`; what was shown before is forgotten."""
        self.press(line + "\n")

    def press(self, keys: str) -> None:
        self.text = ""
        os.write(self._end, keys.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def interrupt_input(self) -> None:
        """Interrupt it where it waits for a line: Python's readline loses a signal that comes
        between the prompt and that."""
        eventually(self._sleeps, what="it waits for a line")
        self.interrupt()

    def leave(self) -> None:
        """Ctrl-D, which ends the command without an error."""
        self.press("\x04")
        assert self.process.wait(PATIENCE) == 0

    def shows(self, *words: str) -> str:
        """Wait until all `words` are there, in this order."""
        end = time.monotonic() + PATIENCE
        while not self._has(words):
            assert time.monotonic() < end, f"{words} not in {self.text!r}"
            if select.select([self._end], [], [], 0.1)[0]:
                self.text += os.read(self._end, 65536).decode(errors="replace")
        return self.text

    def _sleeps(self) -> bool:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "S"

    def _has(self, words: tuple[str, ...]) -> bool:
        rest = self.text
        for word in words:
            _, found, rest = rest.partition(word)
            if not found:
                return False
        return True
