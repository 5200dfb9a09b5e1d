"""Files of graphs' sources, also those of processes that were killed."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mindspore_serving.llm.runtimes.mindspore.source_file import PREFIX, source_file


def test_sources_of_killed_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are in use remain, and files of others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stray, other = tmp_path / f"{PREFIX}1.py", tmp_path / "prefill-1.py"
    for path in (stray, other):
        path.write_text("x")
    with source_file("first") as first, source_file("second") as second:
        assert [Path(path).read_text() for path in (first, second)] == ["first", "second"]
        assert set(tmp_path.iterdir()) == {Path(first), Path(second), other}
    assert list(tmp_path.iterdir()) == [other]


def test_sources_that_end_at_once_are_each_removed_by_their_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that others remove between its lock's end and its own removal failed the compiler."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def hold(number: int) -> bool:
        with source_file(str(number)) as path:
            return Path(path).read_text() == str(number)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(hold, range(400)))
    assert not list(tmp_path.iterdir())
