"""Records of what is in this package's cache: whose download a directory is, complete or not."""

import json
import os
import shutil
from pathlib import Path

from mindspore_serving.hub.download import write_atomically
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.source import CachedModel, Listing, cache_directory

_RECORD = ".source.json"


def read_record(directory: Path) -> dict[str, object]:
    """Return what `write_record` wrote; {} before a download is complete."""
    try:
        record = json.loads((directory / _RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(directory: Path, reference: Reference, listing: Listing, **more: object) -> None:
    """Note whose download a directory is, and that it is complete."""
    names = {"scheme": reference.scheme, "name": reference.name, "tag": reference.revision}
    record = {**names, "revision": listing.revision, "licence": listing.licence, **more}
    write_atomically(directory / _RECORD, json.dumps(record))


def recorded(scheme: str) -> list[CachedModel]:
    """Return the complete downloads below the cache of a scheme."""
    models = []
    for path in sorted(cache_directory(scheme).rglob(_RECORD)):
        record = read_record(path.parent)
        if record.get("name"):
            reference = Reference(scheme, str(record["name"]), str(record.get("tag", "")))
            revision, size = str(record.get("revision", "")), size_of(path.parent)
            used, served = recent_use(path.parent), path.parent / str(record.get("entry", ""))
            models.append(CachedModel(reference, revision, served, size, used))
    return models


def recent_use(directory: Path) -> float:
    """Return when a file in a directory was read last, in seconds since 1970."""
    return max((file.stat().st_atime for file in directory.iterdir()), default=0.0)


def size_of(directory: Path) -> int:
    """Return the bytes of the files below a directory; of links nothing."""
    files = (Path(folder, name) for folder, _, names in os.walk(directory) for name in names)
    return sum(file.stat().st_size for file in files if not file.is_symlink())


def remove_directory(directory: Path) -> int:
    """Remove a directory; return the bytes that its files had."""
    size = size_of(directory)
    shutil.rmtree(directory, ignore_errors=True)
    return size
