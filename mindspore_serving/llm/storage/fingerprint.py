"""Fingerprints of checkpoints, by the contents of their files."""

from hashlib import blake2b
from pathlib import Path

from mindspore_serving.hub.source import cache_directory
from mindspore_serving.llm.checkpoint.gguf.pieces import pieces_of
from mindspore_serving.llm.checkpoint.mindformers.chunks import find_iteration
from mindspore_serving.llm.checkpoint.mindformers.settings import find_weights
from mindspore_serving.stores.file_hashes import DIGEST_SIZE, FileHashes

# Only files that a model is made from: others may change without changing the model.
SUFFIXES = (".safetensors", ".ckpt", ".bin", ".gguf", ".mindir", ".json", ".yaml")
SLICES = ("rank_*/*", "*strategy/*")  # of ranks, in directories of their own


def fingerprints_directory() -> Path:
    """Return the directory of this user that remembers hashes of files, made if it is missing."""
    directory = cache_directory("fingerprints")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def fingerprint(checkpoint: Path, directory: Path) -> bytes:
    """Hash the files of `checkpoint`, a directory or a file; `directory` remembers the hashes."""
    hashes, digest = FileHashes(directory), blake2b(digest_size=DIGEST_SIZE)
    for path in _files(checkpoint):
        digest.update(f"{path.name}\0{hashes.hash_of(path)}\0".encode())
    hashes.save()
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
