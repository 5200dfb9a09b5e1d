"""Models in several GGUF files, NAME-00001-of-00003.gguf and so on: found, mapped and checked.

The first file has the metadata; the tensors of all are read where they are.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def open_gguf(path: Path) -> GgufFile:
    """Open a file with its other pieces; they are mapped once per process until they change.

    Raises StartError for a piece that is missing or of another model.
    """
    stamps = []
    for piece in pieces_of(path):
        try:
            stat = piece.stat()
        except OSError as error:
            raise StartError(f"{piece} cannot be read: {error}") from None
        stamps.append((piece.absolute(), stat.st_mtime_ns, stat.st_size))
    return _opened(tuple(stamps))


def pieces_of(path: Path) -> list[Path]:
    """Return the files of the model whose first is `path`; `path` alone if it is no piece.

    Raises StartError for another piece than the first, or if one is missing.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        return [path]
    name, number, count = match[1], int(match[2]), int(match[3])
    names = [f"{name}-{piece:05}-of-{match[3]}.gguf" for piece in range(1, count + 1)]
    if number != 1 and count > 1:
        raise StartError(f"{path} is piece {number} of {count}: give the path of {names[0]}")
    present = set(siblings(path.parent, name))
    missing = [piece for piece in names if piece not in present]
    if missing and path.is_file():
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise StartError(
            f"{path} is the first of {count} pieces, and there is no {missing[0]}{more} beside it: "
            "download or copy all of them into one directory"
        )
    return [path.with_name(piece) for piece in names] or [path]


def firsts(paths: Iterable[Path]) -> list[Path]:
    """Return the files that are models, without the further pieces of those in several."""
    matches = [(path, _NAME.fullmatch(path.name)) for path in paths]
    return [path for path, match in matches if match is None or int(match[2]) <= 1]


def siblings(directory: Path, name: str) -> list[str]:
    """Return the names of the pieces of the model `name` in a directory."""
    matches = (_NAME.fullmatch(path.name) for path in directory.glob("*.gguf"))
    return [match[0] for match in matches if match is not None and match[1] == name]


@lru_cache(maxsize=4)
def _opened(stamps: tuple[tuple[Path, int, int], ...]) -> GgufFile:
    first, *later = (GgufFile(path) for path, _, _ in stamps)
    count = first.metadata.get(COUNT, 1)
    if count not in (0, 1) and len(stamps) == 1:
        raise StartError(
            f"{first.path} is one of {count} pieces of a model, expected a name such as "
            "model-00001-of-00003.gguf, beside the other pieces"
        )
    for number, piece in enumerate((first, *later) if later else ()):
        if (piece.metadata.get(NUMBER), piece.metadata.get(COUNT)) != (number, len(stamps)):
            raise StartError(
                f"{piece.path} says that it is piece {piece.metadata.get(NUMBER)} (from 0) of "
                f"{piece.metadata.get(COUNT)}, expected {number} of {len(stamps)}, as its name says"
            )
    for piece in later:
        common = next(iter(piece.tensors.keys() & first.tensors.keys()), "")
        if common:
            raise StartError(f"{piece.path} has {common!r}, which an earlier piece has too")
        first.tensors |= piece.tensors
    total = first.metadata.get(TENSORS)
    if later and total != len(first.tensors):
        raise StartError(
            f"{first.path} and its pieces have {len(first.tensors)} tensors, expected {total}: "
            "pieces of another model are among them"
        )
    return first
