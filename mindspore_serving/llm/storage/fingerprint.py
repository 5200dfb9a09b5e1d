"""Fingerprints of checkpoints, by the contents of their files.

Each file is read once: a directory remembers its hash as long as its size and times do not change.
"""

import json
import os
import re
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import blake2b
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from mindspore_serving import log
from mindspore_serving.llm.checkpoint.gguf.pieces import pieces_of
from mindspore_serving.llm.checkpoint.mindformers.chunks import find_iteration
from mindspore_serving.llm.checkpoint.mindformers.settings import find_weights
from mindspore_serving.stores.file_store import UNFINISHED, remove_if_abandoned

# Only files that a model is made from: others may change without changing the model.
SUFFIXES = (".safetensors", ".ckpt", ".bin", ".gguf", ".mindir", ".json", ".yaml")
SLICES = ("rank_*/*", "*strategy/*")  # of ranks, in directories of their own
REMEMBERED = "checkpoints.json"
_UNFINISHED = re.compile(rf"checkpoints\.(\w{{8}}{re.escape(UNFINISHED)}|[0-9]+)")
_CHUNK = 8 << 20
_DIGEST_SIZE = 16


def fingerprint(checkpoint: Path, directory: Path) -> bytes:
    """Hash the files of `checkpoint`, a directory or a file; `directory` remembers the hashes."""
    known, hashes = _known(directory / REMEMBERED), {}
    digest = blake2b(digest_size=_DIGEST_SIZE)
    for path in _files(checkpoint):
        status = path.stat()
        # ctime cannot be set back by a user, mtime can.
        times = [status.st_dev, status.st_ino, status.st_size]
        times += [status.st_mtime_ns, status.st_ctime_ns]
        file_hash = _remembered(known.get(str(path)), times) or _hash(path)
        hashes[str(path)] = {"status": times, "hash": file_hash}
        digest.update(f"{path.name}\0{file_hash}\0".encode())
    _remember(directory / REMEMBERED, known | hashes)
    return digest.digest()


def _files(checkpoint: Path) -> list[Path]:
    """Return the files of a checkpoint, and those of weights that its settings name."""
    other = find_weights(checkpoint)
    return [*_files_in(checkpoint), *(_files_in(other) if other else ())]


def _files_in(path: Path) -> list[Path]:
    if path.is_file():
        return [piece.absolute() for piece in pieces_of(path)]
    iteration = find_iteration(path)
    if iteration is not None and iteration != path:
        return sorted([*_files_in(iteration), *(file.absolute() for file in path.glob("*.json"))])
    slices = (file for part in SLICES for file in path.glob(part))
    return sorted(
        file.absolute()
        for file in (*path.iterdir(), *slices)
        if file.suffix in SUFFIXES and file.is_file()
    )


def _remembered(entry: Any, times: list[int]) -> str:
    """Return the hash in `entry` if the file has not changed since, else ""."""
    is_same = isinstance(entry, dict) and entry.get("status") == times
    return str(entry.get("hash", "")) if is_same else ""


def _hash(path: Path) -> str:
    digest = blake2b(digest_size=_DIGEST_SIZE)
    with open(path, "rb", 0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _known(path: Path) -> dict[str, Any]:
    try:
        entries = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _remember(path: Path, entries: dict[str, Any]) -> None:
    """Write the hashes of the checkpoints that still exist.

    A failure is only logged: the next start then hashes the files again.
    """
    kept = {name: entry for name, entry in entries.items() if os.path.exists(name)}
    unfinished = ""
    try:
        _remove_leftovers(path.parent)
        number, unfinished = mkstemp(UNFINISHED, f"{path.stem}.", path.parent)
        with open(number, "w") as file:
            flock(number, LOCK_EX | LOCK_NB)  # held until the file is closed or this process ends
            json.dump(kept, file)
            file.flush()
            os.replace(unfinished, path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)
        with suppress(OSError):
            os.unlink(unfinished)


def _remove_leftovers(directory: Path) -> None:
    """Remove unfinished files of killed processes; older versions named them by process id."""
    for path in directory.iterdir():
        if _UNFINISHED.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with suppress(FileNotFoundError):  # another process has just removed it
                remove_if_abandoned(path)
