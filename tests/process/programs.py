"""What the child processes of `test_child` run: `python -m tests.process.programs NAME`."""

import argparse
import os
import subprocess
import sys
import time

from mindspore_serving.process.child import Child, Program
from mindspore_serving.process.entry import enter

FOREVER = 600.0  # seconds


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("descriptors", type=int, nargs="*")
    arguments = enter(parser, has_channel=False)
    return globals()[arguments.name](*arguments.descriptors) or 0


def variables() -> None:
    print(os.environ.get("SECRET_OF_PARENT"), os.environ.get("GIVEN_TO_CHILD"))


def descriptors(output: int, hidden: int) -> None:
    os.write(output, str(os.path.exists(f"/proc/self/fd/{hidden}")).encode())


def prints() -> int:
    print("the last words", flush=True)
    return 3


def waits() -> None:
    time.sleep(FOREVER)


def grandparent() -> None:
    """Start a process, which is in this one's group, and print both numbers."""
    sleeping = subprocess.Popen(["sleep", str(int(FOREVER))])
    print(os.getpid(), sleeping.pid, flush=True)
    time.sleep(FOREVER)


def parent() -> None:
    Child(Program("tests.process.programs", ["grandparent"]))
    time.sleep(FOREVER)


if __name__ == "__main__":
    sys.exit(main())
