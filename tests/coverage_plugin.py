"""Line coverage by package, measured in the processes of a run of all tests.

A plugin of pytest, loaded by `PYTEST_PLUGINS=tests.coverage_plugin`: workers of pytest-xdist do not
load a plugin named by `-p`.  SlipCover counts a line once and then removes its probe, so that hot
loops are not slowed down as by a trace function.  Other processes that a test starts, such as
workers of a server, are not measured.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from slipcover import FileMatcher, ImportManager, Slipcover, merge_coverage

PACKAGE = Path(__file__).parents[1] / "mindspore_serving"
FLOORS = Path(__file__).with_name("coverage_floors.txt")
TOP = "(top)"  # modules that are in no subpackage
# Compiled functions are translated and not run by Python.
COMPILED = [
    str(path)
    for path in sorted((PACKAGE / "llm" / "runtimes" / "native").glob("*.py"))
    if any(f"\n@{name}\n" in path.read_text() for name in ("compiled", "entry"))
]
OMITTED = ["*_pb2.py", "*_pb2_grpc.py", *COMPILED]
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
        # The controller alone lists the files that no process has imported.
        sources = [] if worker else [str(PACKAGE)]
        # Negative threshold: probes stay, as taking them out looks at the variables of all frames.
        self._cover = Slipcover(source=sources, omit=OMITTED, d_miss_threshold=-1)
        self._imports = ImportManager(self._cover, FileMatcher([str(PACKAGE)], OMITTED))
        self._imports.__enter__()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: object) -> None:
        """Tell a new worker of pytest-xdist where to save its measurement."""
        node.workerinput[DIRECTORY] = str(self._directory)  # type: ignore[attr-defined]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Save what this process measured; in the controller, report all and check the floors."""
        measured = self._cover.get_coverage()
        if self._is_worker:
            with tempfile.NamedTemporaryFile(
                "w", dir=self._directory, suffix=".json", delete=False
            ) as file:
                json.dump(measured, file)
            return
        for path in self._directory.glob("*.json"):
            merge_coverage(measured, json.loads(path.read_text()))
        counts = counts_by_package(measured["files"])
        too_low = below_floors(counts, read_floors()) if is_whole_run(self._config) else []
        self._report = [*table(counts), *too_low]
        if too_low and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        self._imports.__exit__()
        if not self._is_worker:
            shutil.rmtree(self._directory)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._report:
            terminalreporter.section("coverage of lines in the processes of the tests")
            for line in self._report:
                terminalreporter.write_line(line)


def is_whole_run(config: pytest.Config) -> bool:
    """Return whether the run is over all tests, so that floors hold for it."""
    options = config.option
    narrowed = options.keyword or options.markexpr or options.collectonly or options.deselect
    last_failed = getattr(options, "lf", False)
    is_from_testpaths = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return is_from_testpaths and not narrowed and not last_failed


def counts_by_package(files: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the numbers of statements and of executed statements of each package."""
    counts: dict[str, tuple[int, int]] = {}
    for name, file in sorted(files.items()):
        parts = Path(name).resolve().relative_to(PACKAGE).parts
        package = parts[0] if len(parts) > 1 else TOP
        total, executed = counts.get(package, (0, 0))
        ran, missed = len(file["executed_lines"]), len(file["missing_lines"])
        counts[package] = total + ran + missed, executed + ran
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
