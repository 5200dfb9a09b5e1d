"""The parts of the page that know no browser, by Node's own test runner."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

FILES = sorted((Path(__file__).parent / "logic").glob("*.test.mjs"))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_logic_of_the_page() -> None:
    assert FILES
    command = ["node", "--test", *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
