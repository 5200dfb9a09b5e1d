"""The entry of a child process: its command line, and its lifeline to the parent."""

import argparse
import atexit
import fcntl
import gc
import os
import select
import signal
import sys
from collections.abc import Sequence

# Options of every child: the address of its channel, and the descriptor of its lifeline (last).
CHANNEL, LIFELINE = "--channel", "--lifeline"


def enter(
    parser: argparse.ArgumentParser, *, ignores_signals: bool = False, has_channel: bool = True
) -> argparse.Namespace:
    """Parse the command line of this process and tie its life to its parent's.

    With `has_channel` the result's `channel` is an address for `channel.connect`.  With
    `ignores_signals` this process ignores SIGINT and SIGTERM: its parent decides when it ends.
    """
    turn_off_telemetry()
    end_quickly()
    if has_channel:
        parser.add_argument(CHANNEL, required=True, help="fd:N, unix:PATH or tcp:HOST:PORT")
    arguments = parser.parse_args(tie_to_parent(sys.argv[1:]))
    if ignores_signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return arguments


def tie_to_parent(words: Sequence[str]) -> Sequence[str]:
    """Tie the life of this process to its parent's; return `words` without the lifeline option.

    `words` is the command line; the option comes last.  A process that `Child` did not start has no
    lifeline and is not tied.
    """
    if words[-2:-1] != [LIFELINE]:
        return words
    kill_group_on_close(int(words[-1]))
    return words[:-2]


def remove_current_directory_from_path() -> None:
    """Remove the current directory from `sys.path`, so that no file in it hides a module."""
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]


def kill_group_on_close(lifeline: int) -> None:
    """Make the kernel kill this process group when the write end of the pipe `lifeline` closes.

    PR_SET_PDEATHSIG will not do: it kills this process alone and leaves its children, and it fires
    at the end of the thread that started us, not of the process.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # closed before O_ASYNC was set
        kill_group()


def kill_group() -> None:
    """Kill this process, and its process group if it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def turn_off_telemetry() -> None:
    """Turn off the telemetry of ONNX Runtime and OpenVINO in this process and its children.

    ONNX Runtime sends names and shapes of models to Microsoft from 1.29 on; both keep an id on
    disk.  Call this before they are imported.  ORT_DISABLE_TELEMETRY=0 in the environment keeps
    ONNX Runtime's telemetry on.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # Looks like a package that is not installed, which OpenVINO allows; it needs a home directory.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


def end_quickly() -> None:
    """Make Python leave out the last collection of garbage when this process ends.

    It goes through all that the modules held, for 0.2 s, to free memory that the kernel frees.
    Call this early: what is registered to run at exit after this runs before.
    """
    atexit.register(gc.freeze)
