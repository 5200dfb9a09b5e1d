"""Clients of protocol v2 that have environments of their own; skipped where those are not made."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.described import SOURCE
from tests.e2e.harness import ROOT, Calls, config, serving, write_servable

CACHE = Path.home() / ".cache" / "mindspore-serving"
KSERVE = Path(os.environ.get("KSERVE", CACHE / "kserve"))
LIBRARIES = Path(os.environ.get("LIBRARIES", CACHE / "perf-analyzer"))


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory = tmp_path_factory.mktemp("clients")
    write_servable(directory, "toy", SOURCE)
    with serving(directory, config(directory, "toy"), client_shared_memory=True) as found:
        yield found


def run(*words: str) -> str:
    environment = {**os.environ, "VENV": str(Path(sys.executable).parents[1])}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kserves_clients_call_by_v1_v2_and_grpc(calls: Calls) -> None:
    if not (KSERVE / "installed").exists():
        pytest.skip("kserve is not installed: scripts/kserve-client makes its environment")
    run("scripts/kserve-client", f"http://127.0.0.1:{calls.http}", calls.grpc, "toy")


@pytest.mark.parametrize(("protocol", "memory"), [("http", "system"), ("grpc", "none")])
def test_perf_analyzer_measures_a_model(calls: Calls, protocol: str, memory: str) -> None:
    program = Path(sys.executable).parent / "perf_analyzer"  # the wheels of some machines have none
    if not (program.exists() and (LIBRARIES / "libb64.so.0d").exists()):
        pytest.skip("perf_analyzer lacks libraries: scripts/perf-analyzer --version gets them")
    url = calls.grpc if protocol == "grpc" else f"127.0.0.1:{calls.http}"
    words = ("-m", "toy", "-u", url, "-i", protocol, "-b", "2", "--shared-memory", memory)
    # As many requests as they are; that they are stable is not asked for.
    few = ("--measurement-mode", "count_windows", "--measurement-request-count", "20")
    shown = run("scripts/perf-analyzer", *words, *few, "-s", "100000", "-r", "3")
    found = re.search(r"Successful request count: (\d+)", shown)
    assert found is not None, shown
    assert int(found[1]) > 0
    assert re.search(r"queue \d+ usec .* compute infer \d+ usec", shown)
