"""The log level of a running server: `mindspore-serving log-level`, and by signals."""

import signal
from pathlib import Path

import pytest

from tests.cli.commands import call
from tests.cli.conftest import Served
from tests.ports import free_port
from tests.waiting import eventually

pytestmark = pytest.mark.e2e


def level(served: Served, directory: Path, *words: str) -> str:
    done = call(["log-level", served.url, *words], directory)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_the_level_is_shown_and_changed(served: Served, tmp_path: Path) -> None:
    assert level(served, tmp_path) == "warning"
    for name in ("debug", "info", "error", "warning"):
        assert level(served, tmp_path, name) == name
        assert level(served, tmp_path) == name


def test_signals_change_the_log_level_step_by_step(served: Served, tmp_path: Path) -> None:
    more, less = signal.SIGUSR1, signal.SIGUSR2
    steps = [(more, "info"), (more, "debug"), (more, "debug"), (less, "info"), (less, "warning")]
    for number, name in [*steps, (less, "error"), (more, "warning")]:
        count = len(served.command.lines)
        served.command.process.send_signal(number)
        changed = f"a signal changed the log level to {name}"
        eventually(lambda: any(changed in line for line in served.command.lines[count:]))  # noqa: B023
        eventually(lambda: level(served, tmp_path) == name)  # noqa: B023


def test_a_wrong_level_and_no_server_are_said_in_a_line(tmp_path: Path) -> None:
    done = call(["log-level", "loud"], tmp_path)
    assert (done.returncode, "LEVEL is 'loud', expected debug" in done.stderr) == (2, True)
    done = call(["log-level", f"127.0.0.1:{free_port()}"], tmp_path)
    assert (done.returncode, "nothing listens at" in done.stderr) == (1, True)
    assert len(done.stderr.splitlines()) == 1
