"""Terminal of `chat`: output, and input lines with editing and a history.

Editing and history are those of the standard library's `readline`, which needs no package and reads
~/.inputrc as shells do. It knows no conversation.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TextIO

from mindspore_serving.cli.openai import Delta

_BOLD, _DIM, _RED, _PLAIN = "\033[1m", "\033[2m", "\033[31m", "\033[0m"
_QUOTES = '"""'
_MAX_LINES = 1000  # of the history file
# Characters that move the cursor, change colours or ring the bell; a model may generate them.
_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def has_colours(stream: TextIO) -> bool:
    """Return whether `stream` is a terminal with colours, and NO_COLOR is not set."""
    can = os.environ.get("TERM", "dumb") != "dumb"
    return can and stream.isatty() and not os.environ.get("NO_COLOR")


class Screen:
    """Output of answers on the standard output.

    Notes are printed there only if it is a terminal, so that a file or a pipe gets answers alone.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._has_colours = has_colours(sys.stdout)
        self._is_thinking = False

    def prompt(self, text: str) -> str:
        """Return `text` for `input`, marked so that readline does not count colours as columns."""
        if not self._is_terminal:
            return ""
        return f"\001{_BOLD}\002{text}\001{_PLAIN}\002" if self._has_colours else text

    def say(self, delta: Delta) -> None:
        """Print a chunk of the answer; on a terminal also the reasoning before it."""
        if not self._is_terminal:
            sys.stdout.write(delta.text)
        else:
            if delta.thought:
                self._think(delta.thought)
            if delta.text:
                self._end_thoughts("\n\n")
                sys.stdout.write(delta.text.translate(_CONTROL))
        sys.stdout.flush()

    def end_answer(self) -> None:
        """End the line of an answer, complete or stopped."""
        self._end_thoughts("")
        print(flush=True)

    def note(self, text: str) -> None:
        """Print a line that is no answer."""
        _print(_DIM, text, sys.stdout if self._is_terminal else sys.stderr)

    def fail(self, error: Exception) -> None:
        _print(_RED, f"mindspore-serving: {error}", sys.stderr)

    def _think(self, text: str) -> None:
        if not self._is_thinking:
            sys.stdout.write(f"{_DIM * self._has_colours}(thinking)\n")
            self._is_thinking = True
        sys.stdout.write(text.translate(_CONTROL))

    def _end_thoughts(self, space: str) -> None:
        if self._is_thinking:
            sys.stdout.write(_PLAIN * self._has_colours + space)
            self._is_thinking = False


class Lines:
    """Lines that the user types; `history` is the file of earlier lines, None for no file."""

    def __init__(self, screen: Screen, history: Path | None) -> None:
        """Read the history.  Raises OSError if the file cannot be created or read."""
        self._screen = screen
        self._history = history
        self._readline: ModuleType | None = None
        with suppress(ImportError):  # without it lines cannot be edited
            import readline

            self._readline = readline
            # Text that is pasted is one message, even with several lines.  Python disables this.
            readline.parse_and_bind("set enable-bracketed-paste on")
        if self._readline is not None and history is not None:
            _make_private(history)
            if history.stat().st_size:  # libedit refuses an empty one
                self._readline.read_history_file(history)
            self._readline.set_history_length(_MAX_LINES)

    def message(self) -> str:
        """Read a line, or the lines between triple quotes.  Raises EOFError, KeyboardInterrupt."""
        line = self._line("> ")
        if not line.startswith(_QUOTES):
            return line
        line = line.removeprefix(_QUOTES)
        while not line.endswith(_QUOTES):
            line += "\n" + self._line("... ").rstrip()
        return line.removesuffix(_QUOTES)

    def _line(self, prompt: str) -> str:
        before = self._length()
        line = input(self._screen.prompt(prompt))
        if self._readline is not None and self._history is not None:
            with suppress(OSError):  # a full disk does not end the conversation
                self._readline.append_history_file(self._length() - before, self._history)
        return line

    def _length(self) -> int:
        return self._readline.get_current_history_length() if self._readline is not None else 0


def state_directory() -> Path:
    """Return the directory for files of the user: in XDG_STATE_HOME, else in ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state, "mindspore-serving")


def history_file() -> Path:
    """Return the history file of the user."""
    return state_directory() / "chat_history"


def _make_private(file: Path) -> None:
    """Create a file if it is missing, and let only its owner read it."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)


def _print(colour: str, text: str, stream: TextIO) -> None:
    """Print a line without control characters, as parts of it may come from a server."""
    text = text.translate(_CONTROL)
    print(f"{colour}{text}{_PLAIN}" if has_colours(stream) else text, file=stream)
