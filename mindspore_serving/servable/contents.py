"""Contents that the answers of a servable depend on: its files, its options and the libraries.

Two servers whose digests are equal give equal answers, as far as these decide them.  Code that a
servable imports from elsewhere, and what it reads over a network, is not known here.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

from mindspore_serving import __version__, extras
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.stores.file_hashes import FileHashes, status_of

ANSWER_OPTIONS = (  # and `weights` and `environment`, which are files
    "allow_pickle", "backend", "precision", "with_batch_dim", "batch_axis", "states", "arguments",
    "inputs", "mode", "network", "device_type", "python", "dec_mode", "llm_options", "enable_lite",
)  # fmt: skip
LIBRARIES = ("mindspore", "mindspore-lite", "onnxruntime", "openvino", "torch", "transformers")
LOCKS = ("pylock.toml", "requirements.lock", "requirements.txt")
MAX_FILES = 20_000  # of a servable whose answers are shared

ReadFiles: TypeAlias = Mapping[str, tuple[Path, list[int]]]
"""Paths and statuses of the files that answers may depend on, by their names in the servable."""


def read_files(deployment: Deployment) -> ReadFiles | None:
    """Return the files of a version, but those of other versions; None if there are too many."""
    root = Path(deployment.servable_directory, deployment.servable_name)
    directory = root.parent if root.is_file() else root
    paths = {}
    for path in _files_below(directory, str(deployment.version_number)):
        paths[os.path.relpath(path, directory)] = path
        if len(paths) > MAX_FILES:
            return None
    if deployment.weights:
        paths["weights"] = Path(deployment.weights)
    if deployment.environment:
        locks = (Path(deployment.environment, name) for name in LOCKS)
        paths |= {f"environment/{path.name}": path for path in locks if path.is_file()}
    files = {}
    for name, path in paths.items():
        with suppress(OSError):  # it has just been removed
            files[name] = path, status_of(path)
    return files


def _files_below(directory: Path, version: str) -> Iterator[Path]:
    """Iterate over the files, also behind links; each directory is read once."""
    seen = set()
    for base, names, files in os.walk(directory, followlinks=True):
        status = os.stat(base)
        if (status.st_dev, status.st_ino) in seen:  # a link back
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        is_top = Path(base) == directory
        names[:] = (
            name
            for name in names
            if name != "__pycache__" and not (is_top and name.isdecimal() and name != version)
        )
        yield from (path for name in files if (path := Path(base, name)).is_file())


def digest_of(deployment: Deployment, files: ReadFiles, hashes: FileHashes) -> bytes | None:
    """Return the digest of a version with `files`; None if they have changed since.

    Raises OSError.
    """
    digest = blake2b(repr((__version__, [extras.installed(name) for name in LIBRARIES])).encode())
    values = {name: getattr(deployment, name) for name in ANSWER_OPTIONS}
    ordered = {
        name: sorted(value.items()) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    digest.update(repr(ordered).encode())
    for name, (path, status) in sorted(files.items()):
        digest.update(f"{name}\0{hashes.hash_of(path)}\0".encode())
        if status_of(path) != status:
            return None
    hashes.save()
    return digest.digest()
