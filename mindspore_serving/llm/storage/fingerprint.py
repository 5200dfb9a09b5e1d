"""What a checkpoint is, by the contents of its files.

They are read once: a directory remembers the hashes of files, as long as these have the same sizes
and times.
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
from mindspore_serving.llm.storage.block_files import UNFINISHED, remove_if_left

# Of the files that a model is made from; of others some may change with nothing else.
SUFFIXES = (".safetensors", ".ckpt", ".bin", ".gguf", ".mindir", ".json")
REMEMBERED = "checkpoints.json"
_UNFINISHED = re.compile(rf"checkpoints\.(\w{{8}}{re.escape(UNFINISHED)}|[0-9]+)")
_CHUNK = 8 << 20
_DIGEST_SIZE = 16


def fingerprint(checkpoint: Path, directory: Path) -> bytes:
    """Of the files of the directory or the file `checkpoint`; `directory` remembers them."""
    known, found = _known(directory / REMEMBERED), {}
    digest = blake2b(digest_size=_DIGEST_SIZE)
    for path in _files(checkpoint):
        status = path.stat()
        # The time of the last change of the inode cannot be set back, as that of a write can.
        times = [status.st_dev, status.st_ino, status.st_size]
        times += [status.st_mtime_ns, status.st_ctime_ns]
        own = _remembered(known.get(str(path)), times) or _hash(path)
        found[str(path)] = {"status": times, "hash": own}
        digest.update(f"{path.name}\0{own}\0".encode())
    _remember(directory / REMEMBERED, known | found)
    return digest.digest()


def _files(checkpoint: Path) -> list[Path]:
    if checkpoint.is_file():
        return [checkpoint.absolute()]
    return sorted(
        path.absolute()
        for path in checkpoint.iterdir()
        if path.suffix in SUFFIXES and path.is_file()
    )


def _remembered(entry: Any, times: list[int]) -> str:
    """The hash in `entry` if the file has not changed since; else ""."""
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
        found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(path: Path, entries: dict[str, Any]) -> None:
    """Of checkpoints that are still there.  Not being able to costs the next start a while."""
    kept = {name: entry for name, entry in entries.items() if os.path.exists(name)}
    unfinished = ""
    try:
        _remove_leftovers(path.parent)
        number, unfinished = mkstemp(UNFINISHED, f"{path.stem}.", path.parent)
        with open(number, "w") as file:
            flock(number, LOCK_EX | LOCK_NB)  # until it is closed, or this process has ended
            json.dump(kept, file)
            file.flush()
            os.replace(unfinished, path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)
        with suppress(OSError):
            os.unlink(unfinished)


def _remove_leftovers(directory: Path) -> None:
    """Of processes that were killed, also of older versions, which named them by their numbers."""
    for path in directory.iterdir():
        if _UNFINISHED.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with suppress(FileNotFoundError):  # another process has just removed it
                remove_if_left(path)
