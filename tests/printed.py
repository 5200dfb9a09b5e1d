"""Commands that `serve` prints, pasted into bash as they are.

curl gets what the tests need by its configuration file, so that a line is not changed.
"""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.cli.commands import SERVING, environment
from tests.waiting import PATIENCE

CURL_OPTIONS = 'silent\nshow-error\nwrite-out = "\\n%{http_code}"\n'


def commands(text: str) -> list[str]:
    """Return the commands in what `serve` printed."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [
        line for line in lines if line.startswith(("curl ", "python3 -c ", "mindspore-serving "))
    ]


def installed(directory: Path) -> dict[str, str]:
    """Variables with which `mindspore-serving` is found; it is written into `directory`."""
    script = directory / "bin" / "mindspore-serving"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shlex.join(SERVING)} "$@"\n')
    script.chmod(0o755)
    return {"PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}"}


def paste(line: str, directory: Path, variables: Mapping[str, str] | None = None) -> str:
    """Type `line` into bash; return what it prints.  It must succeed, and curl get status 200."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (directory / ".curlrc").write_text(CURL_OPTIONS)
    env = {**environment(), "CURL_HOME": str(directory), **(variables or {})}
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    if "curl " not in line:
        return done.stdout
    body, _, status = done.stdout.rpartition("\n")
    assert status == "200", f"{line}\n{done.stdout}{done.stderr}"
    assert "error_msg" not in body, f"{line}\n{body}"
    return body


def paste_all(lines: Iterable[str], directory: Path) -> None:
    """Paste lines of curl; each answer must be JSON."""
    lines = list(lines)
    assert lines
    for line in lines:
        json.loads(paste(line, directory))
