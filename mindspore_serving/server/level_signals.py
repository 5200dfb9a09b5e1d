"""Signals that change what is logged: SIGUSR1 more, SIGUSR2 less, level by level.

Workers follow, as after any change of the level.
"""

import signal
import threading
from types import FrameType

from mindspore_serving import log
from mindspore_serving.log.settings import NAMES

SIGNALS = {signal.SIGUSR1: -1, signal.SIGUSR2: 1}


def on_signal(number: int, _: FrameType | None) -> None:
    """What was interrupted may be writing to the log: the line is written by another thread."""
    threading.Thread(target=_change, args=(SIGNALS[signal.Signals(number)],)).start()


def _change(step: int) -> None:
    names = {level: name for name, level in NAMES.items()}
    level = str(min(max(int(log.get_level()) + step, 0), len(names) - 1))
    if step < 0:  # who asks for more is to see the line, and who asks for less, too
        log.set_level(level)
    log.warning("a signal changed the log level to %s", names[level])
    log.set_level(level)
