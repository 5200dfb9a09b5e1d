"""The beginning of a child process: its command line, and what ties its life to its parent's."""

import argparse
import fcntl
import os
import select
import signal
import sys
from collections.abc import Sequence

# Options of every child: the address of its channel, and the descriptor of a pipe, which is last.
CHANNEL, LIFELINE = "--channel", "--lifeline"


def enter(
    parser: argparse.ArgumentParser, *, ignores_signals: bool = False, has_channel: bool = True
) -> argparse.Namespace:
    """Return the parsed command line of this process, which ends with its parent from here on.

    With `has_channel` its `channel` is the address of one to the parent, for `channel.connect`.
    With `ignores_signals`, SIGINT and SIGTERM are left to the parent, which decides when this
    process ends.
    """
    turn_off_telemetry()
    if has_channel:
        parser.add_argument(CHANNEL, required=True, help="fd:N, unix:PATH or tcp:HOST:PORT")
    arguments = parser.parse_args(end_with_parent(sys.argv[1:]))
    if ignores_signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return arguments


def end_with_parent(words: Sequence[str]) -> Sequence[str]:
    """Have this process end with its parent, and return the command line `words` without the
    lifeline, which comes last.  A process that was not started by `Child` has none.
    """
    if words[-2:-1] != [LIFELINE]:
        return words
    end_with(int(words[-1]))
    return words[:-2]


def leave_current_directory() -> None:
    """Have no file in the current directory hide a module that this process imports."""
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]


def end_with(lifeline: int) -> None:
    """Have the kernel kill this process group when the other end of the pipe `lifeline` closes.

    Not PR_SET_PDEATHSIG: that would end this process alone and leave what it started; and it tells
    of the end of the thread that started us, not of the process.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # it has closed before
        end_group()


def end_group() -> None:
    """Kill this process and everything it started, if it leads its own group."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def turn_off_telemetry() -> None:
    """Have ONNX Runtime, which from 1.29 on sends names and shapes of models to Microsoft, and
    OpenVINO send nothing from this process and those that it starts, and keep no id of it on disk.
    Before they are imported; who sets ORT_DISABLE_TELEMETRY=0 gets it all the same.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # As if it were not installed, which OpenVINO allows for.  It would need a home directory, too.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
