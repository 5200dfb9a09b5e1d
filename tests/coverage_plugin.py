"""Line coverage by package, measured in tests that need no heavy library and no server.

A plugin of pytest, loaded by `PYTEST_PLUGINS=tests.coverage_plugin`: workers of pytest-xdist do not
load a plugin named by `-p`.  Tracing all tests would take 1.7 times as long, so coverage.py runs
during the collection, which imports the modules, and during tests without a heavy marker.  It does
not see other processes that a test starts.
"""

import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

HEAVY = ("slow", "e2e", "chaos", "mindspore", "torch", "gpu")
PACKAGE = Path(__file__).parents[1] / "mindspore_serving"
FLOORS = Path(__file__).with_name("coverage_floors.txt")
TOP = "(top)"  # modules that are in no subpackage
DIRECTORY = "coverage_directory"  # key of what the controller tells its workers


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CoverageByPackage(config), "coverage-by-package")


class CoverageByPackage:
    """Measurement of one process; the controller combines those of its workers."""

    def __init__(self, config: pytest.Config) -> None:
        worker = getattr(config, "workerinput", None)
        self._is_worker = worker is not None
        self._config = config
        self._directory = Path(
            worker[DIRECTORY] if worker else tempfile.mkdtemp(prefix="coverage-")
        )
        self._report: list[str] = []
        self._coverage = self._new_coverage(suffix=True)
        self._coverage.start()

    def _new_coverage(self, *, suffix: bool) -> coverage.Coverage:
        new = coverage.Coverage(
            # `combine` reads only files whose names begin with that of its own file and a dot.
            data_file=str(self._directory / "data"),
            data_suffix=suffix,
            source=[str(PACKAGE)],
            omit=["*_pb2.py", "*_pb2_grpc.py"],
            config_file=False,
        )
        # The controller of pytest-xdist runs no tests; a warning would fail the run.
        new.set_option("run:disable_warnings", ["no-data-collected"])
        return new

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: object) -> None:
        """Tell a new worker of pytest-xdist where to save its measurement."""
        node.workerinput[DIRECTORY] = str(self._directory)  # type: ignore[attr-defined]

    def pytest_collection_finish(self) -> None:
        self._coverage.stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if any(item.get_closest_marker(mark) for mark in HEAVY):
            return (yield)
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Save what this process measured; in the controller, report all and check the floors."""
        self._coverage.stop()
        self._coverage.save()
        if self._is_worker:
            return
        combined = self._new_coverage(suffix=False)
        combined.combine([str(self._directory)], strict=True)
        counts = counts_by_package(combined)
        too_low = below_floors(counts, read_floors()) if is_whole_run(self._config) else []
        self._report = [*table(counts), *too_low]
        if too_low and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        if not self._is_worker:
            shutil.rmtree(self._directory)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._report:
            terminalreporter.section(
                "coverage of lines in tests without heavy libraries and servers"
            )
            for line in self._report:
                terminalreporter.write_line(line)


def is_whole_run(config: pytest.Config) -> bool:
    """Return whether the run is over all tests, so that floors hold for it."""
    options = config.option
    narrowed = options.keyword or options.markexpr or options.collectonly or options.deselect
    last_failed = getattr(options, "lf", False)
    is_from_testpaths = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return is_from_testpaths and not narrowed and not last_failed


def counts_by_package(measured: coverage.Coverage) -> dict[str, tuple[int, int]]:
    """Return the numbers of statements and of executed statements of each package."""
    counts: dict[str, tuple[int, int]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            continue
        _, statements, _, missing, _ = measured.analysis2(str(path))
        parts = path.relative_to(PACKAGE).parts
        name = parts[0] if len(parts) > 1 else TOP
        total, executed = counts.get(name, (0, 0))
        counts[name] = total + len(statements), executed + len(statements) - len(missing)
    return counts


def percent(count: tuple[int, int]) -> float:
    statements, executed = count
    return 100.0 * executed / statements if statements else 100.0


def table(counts: dict[str, tuple[int, int]]) -> list[str]:
    """Return one line for each package, and one for all."""
    total = (sum(all_ for all_, _ in counts.values()), sum(ran for _, ran in counts.values()))
    rows = [*sorted(counts.items()), ("total", total)]
    return [f"{name:<16}{count[0]:>8} lines {percent(count):6.1f} %" for name, count in rows]


def read_floors() -> dict[str, float]:
    """Return the lowest allowed percentage of each package."""
    lines = (line.split() for line in FLOORS.read_text().splitlines() if line[:1] not in ("", "#"))
    return {name: float(floor) for name, floor in lines}


def below_floors(counts: dict[str, tuple[int, int]], floors: dict[str, float]) -> list[str]:
    """Return a message for each package whose coverage is below its floor."""
    return [
        f"coverage of {name} is {percent(counts[name]):.1f} %, below its floor of {floor:g} % "
        f"in tests/{FLOORS.name}: add tests"
        for name, floor in sorted(floors.items())
        if name in counts and percent(counts[name]) < floor
    ]
