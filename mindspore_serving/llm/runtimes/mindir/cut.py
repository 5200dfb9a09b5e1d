"""Directories of MindIR files that are split over ranks: MODEL/rank_0, MODEL/rank_1 and so on.

Each has its graphs and rank.json, which tells the rank and the export.  Knows no MindSpore.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from mindspore_serving.errors import StartError
from mindspore_serving.file_check import why_no_model
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_json

FILE = "rank.json"


@dataclass(frozen=True, slots=True)
class RankMindIR:
    """Contents of rank.json: rank `rank` of `size`; `export` identifies files written together."""

    rank: int
    size: int
    export: str

    def write(self, directory: Path) -> None:
        """Write rank.json to `directory`."""
        (directory / FILE).write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, directory: Path) -> "RankMindIR":
        """Read rank.json.  Raises StartError naming the file and its content."""
        content = read_json(directory / FILE)
        kinds = {"rank": int, "size": int, "export": str}
        values = {field.name: content.get(field.name) for field in fields(cls)}
        if not all(isinstance(values[name], kind) for name, kind in kinds.items()):
            raise StartError(f"{directory / FILE} has {content}, expected {', '.join(kinds)}")
        return cls(**values)  # type: ignore[arg-type]


def rank_directory(directory: Path, rank: int) -> Path:
    """Return the directory of a rank's files."""
    return directory / f"rank_{rank}"


def find_model(prefill: Sequence[str], decode: Sequence[str]) -> Path:
    """Return the directory of the model whose ranks, in order, have these files.

    One rank has a complete model.

    Raises StartError: lists that differ, files that are missing or not of one model.
    """
    if not prefill or len(decode) != len(prefill):
        raise StartError(
            f"there are {len(prefill)} prefill_model and {len(decode)} decode_model, expected one "
            "of each rank"
        )
    directories = [
        [_directory_of(path) for path in pair] for pair in zip(prefill, decode, strict=True)
    ]
    size, first = len(directories), directories[0][0]
    model = first.parent if size > 1 else first
    for rank, pair in enumerate(directories):
        expected = rank_directory(model, rank) if size > 1 else model
        for directory in pair:
            if directory != expected:
                raise StartError(
                    f"a file of rank {rank} is in {directory}, expected it in {expected}: prefill "
                    "and decode of each rank, in the order of ranks, as export_mindir writes them"
                )
    if not (model / CONFIG).is_file():
        raise StartError(f"{model} has no {CONFIG}; export the model again with export_mindir")
    if size > 1:
        check_cut(model, size)
    else:
        check_not_split(model)
    return model


def _directory_of(path: str) -> Path:
    """Return the directory of the file `path`, or `path` if it is a directory."""
    resolved = Path(path).resolve()
    if not resolved.exists():
        raise StartError(f"{path} does not exist, expected a MindIR file that export_mindir wrote")
    if why := why_no_model(resolved):
        raise StartError(f"{path} {why}")
    return resolved if resolved.is_dir() else resolved.parent


def check_cut(directory: Path, size: int) -> None:
    """Raise StartError unless `directory` has the files of `size` ranks, of one export."""
    if not rank_directory(directory, 0).is_dir():
        raise StartError(
            f"{directory} has no rank_0, expected a model that is cut for {size} ranks: python -m "
            f"mindspore_serving.llm.export_mindir SOURCE TARGET --ranks {size}"
        )
    first = RankMindIR.read(rank_directory(directory, 0))
    for rank in range(size):
        rank_files = rank_directory(directory, rank)
        if first.size != size:
            raise StartError(
                f"{directory} is cut for {first.size} ranks, not for {size}: give "
                f"pipeline_parallel={first.size}"
            )
        actual, expected = RankMindIR.read(rank_files), RankMindIR(rank, size, first.export)
        if actual != expected:
            raise StartError(
                f"{rank_files / FILE} is of rank {actual.rank} of {actual.size} of export "
                f"{actual.export}, expected rank {rank} of {size} of export {first.export}: the "
                "files are not of one model; export it again"
            )


def check_not_split(directory: Path) -> None:
    """Raise StartError if `directory` has a model that is split for ranks."""
    if rank_directory(directory, 0).is_dir():
        size = RankMindIR.read(rank_directory(directory, 0)).size
        raise StartError(f"{directory} is cut for {size} ranks: give pipeline_parallel={size}")
