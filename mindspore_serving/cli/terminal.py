"""The terminal of `chat`: what is shown and how, and lines with editing and a history.

Editing and history are those of the standard library's `readline`, which needs no package and obeys
~/.inputrc as shells do.  Knows no conversation.
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
_MOST = 1000  # lines of the history's file
# What would move the cursor, change colours or ring in the text of a model.
_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def has_colours(stream: TextIO) -> bool:
    """Whether `stream` is a terminal with colours whose user has not set NO_COLOR."""
    can = os.environ.get("TERM", "dumb") != "dumb"
    return can and stream.isatty() and not os.environ.get("NO_COLOR")


class Screen:
    """Answers on the standard output.  What is no answer is there only if it is a terminal, so
    that a file or a pipe gets answers alone.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._has_colours = has_colours(sys.stdout)
        self._is_thinking = False

    def prompt(self, text: str) -> str:
        """`text` for `input`: marked so that readline counts no colours as columns."""
        if not self._is_terminal:
            return ""
        return f"\001{_BOLD}\002{text}\001{_PLAIN}\002" if self._has_colours else text

    def say(self, delta: Delta) -> None:
        """More of an answer; of a terminal's, also the thoughts before it."""
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
        """Also one that was stopped."""
        self._end_thoughts("")
        print(flush=True)

    def note(self, text: str) -> None:
        """A line of the command itself."""
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
    """What the user types.  `history` is the file of what was typed before; None: there is none."""

    def __init__(self, screen: Screen, history: Path | None) -> None:
        """Raises OSError if the history cannot be kept."""
        self._screen = screen
        self._history = history
        self._readline: ModuleType | None = None
        with suppress(ImportError):  # without it there are lines, but no editing
            import readline

            self._readline = readline
            # What is pasted is one message, also if it has several lines.  Python has this off.
            readline.parse_and_bind("set enable-bracketed-paste on")
        if self._readline is not None and history is not None:
            _make_private(history)
            if history.stat().st_size:  # libedit refuses an empty one
                self._readline.read_history_file(history)
            self._readline.set_history_length(_MOST)

    def message(self) -> str:
        """A line, or the lines between two triple quotes.  Raises EOFError, KeyboardInterrupt."""
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
            with suppress(OSError):  # the disk is full: a conversation is no reason to end
                self._readline.append_history_file(self._length() - before, self._history)
        return line

    def _length(self) -> int:
        return self._readline.get_current_history_length() if self._readline is not None else 0


def history_file() -> Path:
    """Where the history of this user is: in XDG_STATE_HOME, or ~/.local/state without it."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state, "mindspore-serving", "chat_history")


def _make_private(file: Path) -> None:
    """A file that its owner alone can read: there is one, at least an empty one."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    os.fchmod(made, 0o600)
    os.close(made)


def _print(colour: str, text: str, stream: TextIO) -> None:
    """What came from a server is in it too: nothing that controls a terminal."""
    text = text.translate(_CONTROL)
    print(f"{colour}{text}{_PLAIN}" if has_colours(stream) else text, file=stream)
