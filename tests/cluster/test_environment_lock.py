"""Two servers that want the same environment: one makes it, also if it is killed meanwhile."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).resolve().parents[2]
MAKING = """
import sys
from pathlib import Path
from mindspore_serving.cluster.environment import Environments, _Plan

target = Path(sys.argv[1])
_Plan.commands = lambda plan: [["sleep", "3600"]]
Environments()._make(_Plan(target.with_suffix(".txt"), sys.executable, target))
"""


def installer_of(server: int) -> int:
    for children in Path(f"/proc/{server}/task").glob("*/children"):
        for child in children.read_text().split():
            if Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"sleep"):
                return int(child)
    return 0


def is_locked(lock: Path) -> bool:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_installer_of_a_killed_server_keeps_the_environment_locked(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with subprocess.Popen([sys.executable, "-c", MAKING, str(target)], cwd=ROOT) as server:
        eventually(lambda: installer_of(server.pid))
        installer = installer_of(server.pid)
        server.kill()
        server.wait(PATIENCE)
    lock = Path(f"{target}.lock")
    try:
        assert is_locked(lock)
    finally:
        os.kill(installer, signal.SIGKILL)
    eventually(lambda: not is_locked(lock))
