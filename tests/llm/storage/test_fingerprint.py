"""The list of checkpoints: who writes it at once, and what a process that was killed leaves."""

import fcntl
import json

from mindspore_serving.llm.storage.fingerprint import fingerprint
from mindspore_serving.stores import file_hashes


def test_concurrent_writers_of_the_checkpoint_list_share_no_file(tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr(file_hashes.log, "warning", lambda *words: warnings.append(words))
    one, two = (tmp_path / name for name in ("one.gguf", "two.gguf"))
    for checkpoint in (one, two):
        checkpoint.write_bytes(b"weights")
    cache = tmp_path / "cache"
    cache.mkdir()
    write = json.dump

    def write_slowly(entries, file):
        monkeypatch.setattr(file_hashes.json, "dump", write)
        fingerprint(two, cache)  # of a process or thread that is as far
        assert (cache / file_hashes.REMEMBERED).is_file()
        write(entries, file)

    monkeypatch.setattr(file_hashes.json, "dump", write_slowly)
    fingerprint(one, cache)
    assert warnings == []
    assert list(json.loads((cache / file_hashes.REMEMBERED).read_text())) == [str(one)]
    assert [path.name for path in cache.iterdir()] == [file_hashes.REMEMBERED]


def test_unfinished_checkpoint_lists_of_killed_processes_are_removed(tmp_path):
    checkpoint = tmp_path / "model.gguf"
    checkpoint.write_bytes(b"weights")
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("checkpoints.4711", "checkpoints.abcdefgh.unfinished"):
        (cache / name).touch()
    (cache / "checkpoints.other").touch()
    held = (cache / "checkpoints.ijklmnop.unfinished").open("w")  # somebody writes it now
    with held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fingerprint(checkpoint, cache)
    kept = {"checkpoints.ijklmnop.unfinished", "checkpoints.other", file_hashes.REMEMBERED}
    assert {path.name for path in cache.iterdir()} == kept
