"""Coverage by package: lines of all processes are counted, and a package below its floor fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import coverage_plugin

MODULE = """
def covered():
    return 1

def not_covered():
    return 2
"""
TEST_FIRST = """
from mindspore_serving.first.module import covered

def test_covered():
    assert covered() == 1
"""
TEST_SECOND = """
from mindspore_serving.second.module import covered

def test_covered():
    assert covered() == 1
"""
PYTEST_INI = """
[pytest]
testpaths = tests
addopts = --strict-markers --dist=loadfile --import-mode=importlib -p no:cacheprovider
markers =
    slow: takes long
filterwarnings = error
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the plugin and a product of two packages: 4 lines each, 3 of them measured."""
    for name in ("first", "second"):
        package = tmp_path / "mindspore_serving" / name
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "module.py").write_text(MODULE)
    (tmp_path / "mindspore_serving" / "__init__.py").touch()
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(coverage_plugin.__file__, tests)
    (tests / "test_first.py").write_text(TEST_FIRST)
    (tests / "test_second.py").write_text(TEST_SECOND)
    (tmp_path / "pytest.ini").write_text(PYTEST_INI)
    set_floors(tmp_path, first=70, second=70)
    return tmp_path


def set_floors(project: Path, **floors: float) -> None:
    lines = [f"{name} {floor}\n" for name, floor in floors.items()]
    (project / "tests" / coverage_plugin.FLOORS.name).write_text("# floors\n" + "".join(lines))


def run_pytest(project: Path, *args: str) -> subprocess.CompletedProcess[str]:
    temporary = project / "temporary"
    temporary.mkdir()
    ours = {
        "PYTEST_PLUGINS": "xdist.plugin,tests.coverage_plugin",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TMPDIR": str(temporary),
    }
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", *args]
    done = subprocess.run(
        command, cwd=project, env=kept | ours, capture_output=True, text=True, timeout=120
    )
    assert not list(temporary.glob("coverage-*")), done.stdout + done.stderr
    return done


@pytest.mark.parametrize("processes", ["0", "2"])
def test_lines_of_all_processes_are_counted(project: Path, processes: str) -> None:
    done = run_pytest(project, "-n", processes)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["first", "4", "lines", "75.0", "%"] in rows
    assert ["second", "4", "lines", "75.0", "%"] in rows
    assert ["total", "8", "lines", "75.0", "%"] in rows


def test_package_below_its_floor_fails_whole_run(project: Path) -> None:
    set_floors(project, first=70, second=80)
    done = run_pytest(project, "-n", "2")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "coverage of second is 75.0 %, below its floor of 80 %" in done.stdout
    assert "coverage of first" not in done.stdout


@pytest.mark.parametrize("args", [["tests/test_first.py"], ["-k", "first"], ["-m", "not slow"]])
def test_floors_do_not_hold_for_partial_run(project: Path, args: list[str]) -> None:
    set_floors(project, first=99, second=99)
    done = run_pytest(project, "-n", "0", *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "below its floor" not in done.stdout


def test_each_package_has_floor() -> None:
    packages = {path.parent.name for path in coverage_plugin.PACKAGE.glob("*/__init__.py")}
    # Generated modules are not measured.
    assert set(coverage_plugin.read_floors()) == (packages - {"proto"}) | {coverage_plugin.TOP}
