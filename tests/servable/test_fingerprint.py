"""What counts as a change of a servable's files."""

import os

import pytest

from mindspore_serving.servable.fingerprint import fingerprint


@pytest.fixture
def servable(tmp_path):
    root = tmp_path / "net"
    for path in ("servable_config.py", "parts/labels.py", "1/model.onnx", "1/data/w.bin", "2/x.py"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    return root


def look(servable, version=1):
    return fingerprint(str(servable.parent), servable.name, version)


def test_the_fingerprint_covers_code_and_all_files_of_the_version(servable):
    assert {path for path, _, _ in look(servable)} == {
        "servable_config.py",
        "parts/labels.py",
        "1/model.onnx",
        "1/data/w.bin",
    }
    assert "1/model.onnx" not in {path for path, _, _ in look(servable, 2)}


@pytest.mark.parametrize("name", ["servable_config.py", "parts/labels.py", "1/data/w.bin"])
def test_a_changed_file_changes_the_fingerprint(servable, name):
    before = look(servable)
    (servable / name).write_text("something else")
    assert look(servable) != before


def test_a_rewritten_file_of_the_same_size_changes_the_fingerprint(servable):
    before = look(servable)
    path = servable / "1/model.onnx"
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))
    assert look(servable) != before


@pytest.mark.parametrize("name", ["log.txt", "parts/cache.bin", "2/model.onnx", "new/notes.md"])
def test_files_that_workers_do_not_read_keep_the_fingerprint(servable, name):
    before = look(servable)
    (servable / name).parent.mkdir(exist_ok=True)
    (servable / name).write_text("something")
    assert look(servable) == before


def test_files_that_do_not_count_are_not_looked_at(servable, monkeypatch):
    (servable / "data").mkdir()
    (servable / "data" / "images.bin").write_text("something")
    looked, scan = [], os.scandir

    class Entry:
        def __init__(self, entry):
            self._entry = entry

        def __getattr__(self, name):
            return getattr(self._entry, name)

        def stat(self):
            looked.append(self._entry.name)
            return self._entry.stat()

    monkeypatch.setattr(os, "scandir", lambda path: [Entry(one) for one in scan(path)])
    look(servable)
    assert sorted(looked) == ["labels.py", "model.onnx", "servable_config.py", "w.bin"]


def test_compiled_code_keeps_the_fingerprint(servable):
    before = look(servable)
    (servable / "__pycache__").mkdir()
    (servable / "__pycache__" / "servable_config.cpython-311.py").write_text("")
    assert look(servable) == before


def test_of_the_directory_of_a_language_model_all_files_count(tmp_path):
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text("{}")
    before = look(model)
    (model / "model.safetensors").write_bytes(b"1")
    assert len(look(model) - before) == 1


def test_a_directory_that_is_gone_has_no_files(tmp_path):
    assert look(tmp_path / "gone") == frozenset()


def test_the_fingerprint_of_a_model_file_is_that_file(servable):
    path = servable / "1" / "model.onnx"
    before = look(path)
    (servable / "1" / "other.onnx").write_text("beside it")
    assert look(path) == before
    path.write_text("something else")
    assert look(path) != before


def test_a_description_of_triton_counts(servable):
    (servable / "config.pbtxt").write_text("max_batch_size: 8")
    before = look(servable)
    (servable / "config.pbtxt").write_text("max_batch_size: 16")
    assert look(servable) != before


def test_a_version_may_be_a_link_that_is_pointed_elsewhere(servable, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_text(name)
    link = servable / "3"
    link.symlink_to(tmp_path / "first")
    before = look(servable, 3)
    assert "3/model.onnx" in {path for path, _, _ in before}
    link.unlink()
    link.symlink_to(tmp_path / "second")
    assert look(servable, 3) != before


def test_links_in_circles_are_not_followed(servable):
    (servable / "1" / "again").symlink_to(servable)
    assert len(look(servable)) == 4
