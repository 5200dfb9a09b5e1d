"""Which interpreters can run a worker, and what is said of the others."""

import io
import os
import sys
from pathlib import Path

import pytest

from mindspore_serving.cluster.environment import Bar, Environments, failing_line
from mindspore_serving.errors import StartError
from mindspore_serving.process import interpreter
from mindspore_serving.process.interpreter import PACKAGES, find_interpreter
from tests.e2e.interpreters import light_environment

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(interpreter.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def says(version: str) -> str:
    """A shell script that answers as a Python of that version without packages."""
    return f"echo 'interpreter:[{version}, {{}}]'"


def problem(python: str | Path) -> str:
    with pytest.raises(StartError) as caught:
        find_interpreter(str(python))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_packages_that_a_worker_needs_are_dependencies_of_the_project() -> None:
    text = PROJECT.read_text()
    assert PACKAGES
    assert [row for row in PACKAGES if f'"{row}"' not in text] == []


def test_our_own_interpreter_can_run_a_worker() -> None:
    found = find_interpreter(sys.executable)
    assert (found.path, found.version) == (sys.executable, sys.version_info[:3])


def test_a_name_is_looked_up_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "our-python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    # A link leads out of the environment, so what is missing there is said; the name was found.
    assert "does not exist" not in problem_or_path("our-python")
    assert "'their-python' does not exist" in problem("their-python")


def problem_or_path(python: str) -> str:
    try:
        return find_interpreter(python).path
    except StartError as error:
        return str(error)


def test_error_of_a_path_that_is_no_interpreter_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    assert "does not exist" in problem(tmp_path / "nothing")
    assert "is not an executable file" in problem(tmp_path / "text")
    assert "is not an executable file" in problem(tmp_path)
    assert "is not an interpreter of Python" in problem(script(tmp_path / "a", "echo hello"))
    assert "no luck" in problem(script(tmp_path / "b", "echo no luck >&2; exit 3"))


def test_error_of_an_old_python_is_a_sentence(tmp_path: Path) -> None:
    old = script(tmp_path / "old", says("[3, 6, 9]"))
    assert "is Python 3.6.9, expected 3.10 or later" in problem(old)


def test_a_missing_package_is_named_with_the_command_to_install(tmp_path: Path) -> None:
    python = light_environment(tmp_path / "e", lacks="msgspec")
    text = problem(python)
    assert "msgspec is not installed" in text
    assert "numpy is" not in text
    assert f"{python} -m pip install 'msgspec>=" in text


def test_an_old_or_broken_package_is_named(tmp_path: Path) -> None:
    found = '{"msgspec": "0.18.6", "numpy": "1.21.0", "google.protobuf": ["ImportError: no libX"]}'
    python = script(tmp_path / "p", f"echo 'interpreter:[[3, 11, 0], {found}]'")
    text = problem(python)
    assert "numpy is 1.21.0, expected 1.25 or later" in text
    assert "protobuf fails (ImportError: no libX)" in text
    assert "msgspec is" not in text


def test_only_this_package_is_in_the_path_of_another_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_interpreter(str(light_environment(tmp_path / "e")))
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "/ours")
    environment = found.environment({"A": "b"})
    assert os.listdir(environment["PYTHONPATH"]) == ["mindspore_serving"]
    assert environment["PATH"].startswith(f"{tmp_path}/e/bin{os.pathsep}")
    assert environment["A"] == "b"
    assert not {"PYTHONHOME", "VIRTUAL_ENV"} & environment.keys()


def test_error_of_a_cache_that_cannot_be_created_is_a_sentence(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file")
    with pytest.raises(StartError, match=f"cannot create the directory .*{interpreter.CACHE}"):
        interpreter.cache_directory("environments")


async def test_error_of_an_environment_without_a_list_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no directory with a file pylock.toml, "):
        await Environments().make(str(tmp_path), sys.executable)


async def test_the_failing_line_of_pip_is_shown_and_nothing_is_left(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no uv
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "requirements.txt").write_text("./no-such-directory\n")
    with pytest.raises(StartError, match="no-such-directory"):
        await Environments().make(str(tmp_path / "e"), sys.executable)
    assert not list(cache.glob("environments/*/.made"))


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "file"])
def test_a_bar_shows_at_a_terminal_how_many_packages_were_found(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    with Bar("environment e", stream) as bar:
        for line in ("Collecting one", "  Using cached one", "Collecting two", "Installing both"):
            bar.show(line)
    shown = [one.strip() for one in stream.getvalue().split("\r") if one]
    assert (
        shown
        == [
            "environment e: 1 packages, Collecting one",
            "environment e: 2 packages, Collecting two",
            "environment e: 2 packages, Installing both",
        ]
        * is_terminal
    )


async def test_nothing_is_made_once_the_server_stops(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("msgspec\n")
    environments = Environments()
    environments.close()
    with pytest.raises(StartError, match="the server is stopping"):
        await environments.make(str(tmp_path), sys.executable)


def test_the_line_that_says_why_is_found() -> None:
    pip = [
        "Collecting nothing==9",
        "ERROR: Could not find a version that satisfies the requirement nothing==9",
        "ERROR: No matching distribution found for nothing==9",
        "[notice] A new release of pip is available",
    ]
    assert failing_line(pip) == pip[1]
    assert failing_line(["  × No solution found", "  ╰─▶ Because"]) == "× No solution found"
    assert failing_line(["one", "last", ""]) == "last"
    assert failing_line([]) == ""
