"""State on a disk that becomes full: a small file system in memory, mounted for one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import ROOT
from tests.waiting import PATIENCE

PROGRAM = Path(__file__).with_name("full_disk.py")
MOUNT = "mount -t tmpfs -o size=12M none {0} && exec {1} {2} {0}"


def test_a_full_disk_is_an_error_and_room_can_be_made(tmp_path: Path) -> None:
    unshare = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else [])]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True, timeout=PATIENCE)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted for one process: {error}")
    done = subprocess.run(
        [*unshare, "sh", "-c", MOUNT.format(tmp_path, sys.executable, PROGRAM)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    count = found["files"]
    assert 2 < count < 15
    assert found["upload"][0] == 429
    assert "no room for more state" in found["upload"][1]
    assert (found["listed"], found["chat"]) == (count, 200)
    assert found["messages"]["type"] == "error"
    assert found["messages"]["error"]["type"] == "overloaded_error"
    assert (found["deleted"], found["again"]) == ([200] * count, 200)
