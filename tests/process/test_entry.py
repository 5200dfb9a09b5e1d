"""How a process of this package ends."""

import subprocess
import sys

from tests.waiting import PATIENCE

PROGRAM = """
import atexit
from mindspore_serving.process.entry import end_quickly

class Circle:
    def __del__(self):
        print("collected")

end_quickly()
atexit.register(print, "exit")
circle = Circle()
circle.itself = circle
"""


def test_garbage_is_left_to_the_kernel_after_the_functions_at_exit():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("exit\n", "", 0)
