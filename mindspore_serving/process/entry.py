"""The beginning of a child process: its command line, and what ties its life to its parent's."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from mindspore_serving.process.child import LIFELINE
from mindspore_serving.process.lifeline import end_with
from mindspore_serving.process.telemetry import turn_off_telemetry


def enter(parser: argparse.ArgumentParser, *, ignores_signals: bool = False) -> argparse.Namespace:
    """Return the parsed command line of this process, which ends with its parent from here on.

    With `ignores_signals`, SIGINT and SIGTERM are left to the parent, which decides when this
    process ends.
    """
    turn_off_telemetry()
    arguments = parser.parse_args(end_with_parent(sys.argv[1:]))
    if ignores_signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return arguments


def end_with_parent(words: Sequence[str]) -> Sequence[str]:
    """Have this process end with its parent, and return the command line `words` without the
    lifeline, which comes last.  A process that was not started by `Child` has none."""
    if words[-2:-1] != [LIFELINE]:
        return words
    end_with(int(words[-1]))
    return words[:-2]


def leave_current_directory() -> None:
    """Have no file in the current directory hide a module that this process imports."""
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
