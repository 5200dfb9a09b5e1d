"""What every test shares: what a marker names is there, or the test is skipped with the reason."""

import gc
import os
import sys
from collections.abc import Generator, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every machine, however long they take there.  What random ones find is for
# `make fuzz` and for `pytest --hypothesis-profile=default`.
settings.register_profile(
    "all",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("all")

# Most tests compute a few steps: kernels for all sizes of steps took more than those.
os.environ.setdefault("SERVING_WARM_UP_SECONDS", "0")

# Set by the MindIR backend for its own process; another runtime in this one must not read it.
ISA = "ONEDNN_MAX_CPU_ISA"
_isa_at_start = os.environ.get(ISA)
LIBRARY_OF_MARKER = {"mindspore": "mindspore", "torch": "torch", "onnx": "onnxruntime"}
MEMORY_OF_PROCESS = 4 << 30  # bytes, with what it starts
NUM_OF_LIBRARY = 50  # modules: so many more, and one of the large libraries was imported
_num_modules = 0  # when `keep` was called
LONGEST_FIRST = ("mindspore", "slow", "torch", "e2e")


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, as tests of servers wait for a quarter of their time; but no
    more than there is memory for."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores + 1, available_memory() // MEMORY_OF_PROCESS))


def available_memory() -> int:
    """Bytes, of the machine and of the group of processes that this one is in."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (free,) = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    limit = Path("/sys/fs/cgroup/memory.max")
    limited = limit.read_text().strip() if limit.exists() else "max"
    return free if limited == "max" else min(free, int(limited))


def pytest_configure(config: pytest.Config) -> None:
    """Give each process of pytest-xdist its share of the cores, two at least.

    Libraries start a thread for every core they may use: with 64 cores, 64 processes would start
    64 threads each.  On one core alone, threads that spin, as MindSpore's do, hold up each other.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        config.pluginmanager.register(FailuresAtOnce(config))
    else:
        cores, count = sorted(os.sched_getaffinity(0)), worker["workercount"]
        first = int(worker["workerid"][2:]) * len(cores) // count
        share = max(2, len(cores) // count)
        os.sched_setaffinity(0, [cores[(first + place) % len(cores)] for place in range(share)])


class FailuresAtOnce:
    """A printer of each failure when it happens: a run that is cut off has named its failures."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(f"FAILED {report.nodeid} ({report.when})", red=True)
            reporter.write_line(report.longreprtext)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that may take long come first, so that no process of pytest-xdist ends long after the
    others; long cases are left out."""
    if "LONG" not in os.environ:
        config.hook.pytest_deselected(
            items=[one for one in items if one.get_closest_marker("long")]
        )
        items[:] = [one for one in items if not one.get_closest_marker("long")]
    rank = {item.path: len(LONGEST_FIRST) for item in items}
    for item in items:
        marked = [
            place for place, mark in enumerate(LONGEST_FIRST) if item.get_closest_marker(mark)
        ]
        rank[item.path] = min([rank[item.path], *marked])
    items.sort(key=lambda item: rank[item.path])


def pytest_collection_finish() -> None:
    keep()


def keep() -> None:
    """Have the garbage collector leave alone what there is now: modules above all, and what they
    hold.  MindSpore has it go through every object at each graph that it compiles, which took half
    of the processor time of its tests."""
    global _num_modules
    gc.collect()
    gc.freeze()
    _num_modules = len(sys.modules)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is in a circle stays, until the test calls `gc.collect(0)`: what was made in it does not
    grow old.  A full collection takes 0.3 s where MindSpore is loaded."""
    gc.disable()
    yield
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, library in LIBRARY_OF_MARKER.items():
        if item.get_closest_marker(marker) and find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    if item.get_closest_marker("mindspore") and "PYTEST_XDIST_WORKER" in os.environ:
        compute_in_one_thread()
    if item.get_closest_marker("gpu") and not Path("/dev/nvidia0").exists():
        pytest.skip("no NVIDIA GPU")


@cache
def compute_in_one_thread() -> None:
    """MindSpore, in this process: its threads spin, so beside other processes an operation of tiny
    models waits for a core that another one has, ten times as long as it computes.

    Those that operations are queued for run unless it is told so before its first operation, and
    spin for six times what is computed; where language models open, it may be too late."""
    import mindspore

    mindspore.device_context.cpu.op_tuning.threads_num(1)
    mindspore.set_device("CPU")
    mindspore.runtime.launch_blocking()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    yield
    if _isa_at_start is None:
        os.environ.pop(ISA, None)
    is_last = nextitem is None or nextitem.path != item.path
    if is_last or len(sys.modules) > _num_modules + NUM_OF_LIBRARY:
        keep()
