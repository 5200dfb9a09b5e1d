"""What benchmarks start they end, however they are ended themselves."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).resolve().parents[1]
BENCHMARK = """
import sys, time
from benchmarks.processes import running

server = [sys.executable, "-c", "import time; time.sleep(3600)"]
with running("test_benchmarks", server, lambda: True):
    print("ready", flush=True)
    time.sleep(3600)
"""


def test_a_benchmark_that_is_ended_leaves_no_server_behind() -> None:
    command = [sys.executable, "-c", BENCHMARK]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        assert benchmark.stdout.readline() == "ready\n"
        (server,) = Path(f"/proc/{benchmark.pid}/task/{benchmark.pid}/children").read_text().split()
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait(PATIENCE) == 1
    eventually(lambda: not Path("/proc", server).exists())
