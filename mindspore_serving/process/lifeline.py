"""A process group that ends with another process, even while a library holds the interpreter."""

import fcntl
import os
import select
import signal


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
