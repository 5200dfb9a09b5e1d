"""Workers in an interpreter that is not the server's, beside those that are in it."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from mindspore_serving.cli import status
from mindspore_serving.process.interpreter import CACHE
from tests.e2e.harness import Calls, config, eventually, serving, write_servable
from tests.e2e.interpreters import ONLY_THERE, SOURCE, light_environment, look


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("interpreters")
    for name in ("here", "there"):
        write_servable(found, name, SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(found / "cache"))
        yield found


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    python = str(light_environment(place / "environment"))
    configs = [config(place, "here"), config(place, "there", python=python)]
    with serving(place, *configs) as found:
        yield found


def rows(calls: Calls) -> dict[str, Any]:
    found = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
    return {one["name"]: one for one in found}


def test_the_other_environment_wins_and_ours_does_not_leak(calls: Calls, place: Path) -> None:
    here, there = look(calls, "here"), look(calls, "there")
    assert (here["sum"], there["sum"]) == (9, 9)
    assert here["prefix"] == sys.prefix
    assert there["prefix"] == str(place / "environment")
    assert here["found"] == "uvloop,starlette,mindspore_serving"
    assert there["found"] == f"{ONLY_THERE},mindspore_serving"


def test_arrays_larger_than_a_message_go_through_shared_memory(calls: Calls) -> None:
    array = numpy.ones(100_000, numpy.float32)
    answer = calls.client("there", "look").infer([{"x": array}])
    assert answer[0]["sum"] == 200_000


def test_status_shows_the_interpreter(calls: Calls, place: Path) -> None:
    found = rows(calls)
    assert "python" not in found["here"]["workers"][0]
    version = ".".join(map(str, sys.version_info[:3]))
    shown = f"{place / 'environment' / 'bin' / 'python'} ({version})"
    assert found["there"]["workers"][0]["python"] == shown
    lines = list(status.lines(list(found.values())))
    assert sum(line.endswith(shown) for line in lines) == 1


def test_a_killed_worker_starts_again_in_its_interpreter(calls: Calls, place: Path) -> None:
    old = rows(calls)["there"]["workers"][0]["pid"]
    os.kill(old, signal.SIGKILL)
    eventually(lambda: rows(calls)["there"]["workers"][0]["pid"] not in (old, None))
    assert look(calls, "there")["prefix"] == str(place / "environment")


def test_its_numbers_and_log_are_those_of_any_worker(calls: Calls, place: Path) -> None:
    text = calls.http_call("GET", "/metrics")[1].decode()
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("serving_worker_resident_memory_bytes{")
    ]
    assert {"here", "there"} <= {line.split('servable="')[1].split('"')[0] for line in lines}
    assert list((place / "serving_logs").glob("log_there_*.log"))
