"""Interpreters that cannot run a worker, and environments that are made."""

from pathlib import Path

import numpy
import pytest

from mindspore_serving import server
from mindspore_serving.errors import ServingError
from mindspore_serving.process.interpreter import CACHE
from tests.e2e.harness import config, serving, write_servable
from tests.e2e.interpreters import SOURCE, light_environment, look


@pytest.fixture
def place(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE, str(stopped / "cache"))
    for name in ("here", "there"):
        write_servable(stopped, name, SOURCE)
    return stopped


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"python": "/no/such/python"}, "the interpreter '/no/such/python' does not exist"),
        ({"environment": "/no/such"}, "the environment '/no/such' is no directory with a file"),
    ],
)
def test_a_wrong_interpreter_ends_the_start(
    place: Path, options: dict[str, str], text: str
) -> None:
    with pytest.raises(ServingError, match=text):
        server.start_servables(config(place, "here", **options))


def test_another_protocol_is_refused(place: Path) -> None:
    """As after an update of the package under a server that runs."""
    python = light_environment(place / "e")
    packages = next((place / "e" / "lib").glob("*/site-packages"))
    (packages / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'mindspore_serving.worker' in sys.orig_argv:\n"
        "    from mindspore_serving.process import vocabulary\n"
        "    vocabulary.fingerprint = lambda messages: 'other'\n"
    )
    with pytest.raises(ServingError, match=r"has protocol other, the server's \w{8}: both must"):
        server.start_servables(config(place, "here", python=str(python)))


@pytest.mark.slow
def test_another_major_version_of_numpy_runs_beside_ours(place: Path) -> None:
    """In an environment that is made from PyPI."""
    is_old = numpy.__version__.startswith("1.")
    (place / "lists").mkdir()
    (place / "lists" / "requirements.txt").write_text("numpy>=2\n" if is_old else "numpy<2\n")
    configs = [config(place, "here"), config(place, "there", environment=str(place / "lists"))]
    with serving(place, *configs) as calls:
        found = {look(calls, name)["numpy"].split(".")[0] for name in ("here", "there")}
        assert found == {"1", "2"}
        (made,) = (place / "cache" / "environments").glob("lists-*/.made")
    before = made.stat().st_mtime_ns
    with serving(place, configs[1]) as calls:  # it is not made again
        assert look(calls, "there")["sum"] == 9
    assert made.stat().st_mtime_ns == before
