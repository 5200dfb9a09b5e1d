"""Python processes of this package that end with their parent."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def command(module: str, *arguments: str) -> list[str]:
    """`python -m module`, where nothing in the current directory hides what it imports."""
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Ours, with the modules that we find."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, which is `parent`, ends: even while a
    library holds the interpreter.  The parent's end is that of the thread that started us."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def exit_text(status: int) -> str:
    """How a process ended, by its exit status (negative: a signal)."""
    if status < 0:
        return f"ended by signal {signal.Signals(-status).name}"
    return f"exit status {status}"
