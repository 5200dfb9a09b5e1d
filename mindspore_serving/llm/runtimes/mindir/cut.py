"""Directories of MindIR files that are cut for several ranks: MODEL/rank_0, MODEL/rank_1 and so on.

Each has its graphs and rank.json, which says whose they are.  Knows no MindSpore.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_json

FILE = "rank.json"


@dataclass(frozen=True, slots=True)
class RankMindIR:
    """Rank `rank` of `size`; `export` is of all ranks that were written together, and no others."""

    rank: int
    size: int
    export: str

    def write(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, directory: Path) -> "RankMindIR":
        """Raises StartError naming the file and what it has."""
        found = read_json(directory / FILE)
        kinds = {"rank": int, "size": int, "export": str}
        values = {field.name: found.get(field.name) for field in fields(cls)}
        if not all(isinstance(values[name], kind) for name, kind in kinds.items()):
            raise StartError(f"{directory / FILE} has {found}, expected {', '.join(kinds)}")
        return cls(**values)  # type: ignore[arg-type]


def rank_directory(directory: Path, rank: int) -> Path:
    return directory / f"rank_{rank}"


def find_model(prefill: Sequence[str], decode: Sequence[str]) -> Path:
    """The directory of the model whose ranks, in order, have these files; one rank has a whole
    model.  Raises StartError: lists that differ, files that are missing or not of one model.
    """
    if not prefill or len(decode) != len(prefill):
        raise StartError(
            f"there are {len(prefill)} prefill_model and {len(decode)} decode_model, expected one "
            "of each rank"
        )
    own = [[_directory_of(path) for path in pair] for pair in zip(prefill, decode, strict=True)]
    size, first = len(own), own[0][0]
    model = first.parent if size > 1 else first
    for rank, pair in enumerate(own):
        expected = rank_directory(model, rank) if size > 1 else model
        for found in pair:
            if found != expected:
                raise StartError(
                    f"a file of rank {rank} is in {found}, expected it in {expected}: prefill and "
                    "decode of each rank, in the order of ranks, as export_mindir writes them"
                )
    if not (model / CONFIG).is_file():
        raise StartError(f"{model} has no {CONFIG}, expected what export_mindir writes there")
    if size > 1:
        check_cut(model, size)
    else:
        check_whole(model)
    return model


def _directory_of(path: str) -> Path:
    """Of the file, or the directory, `path`."""
    found = Path(path).resolve()
    if not found.exists():
        raise StartError(f"{path} does not exist, expected a MindIR file that export_mindir wrote")
    return found if found.is_dir() else found.parent


def check_cut(directory: Path, size: int) -> None:
    """Raises StartError unless `directory` has the files of `size` ranks, of one export."""
    if not rank_directory(directory, 0).is_dir():
        raise StartError(
            f"{directory} has no rank_0, expected a model that is cut for {size} ranks: python -m "
            f"mindspore_serving.llm.export_mindir SOURCE TARGET --ranks {size}"
        )
    first = RankMindIR.read(rank_directory(directory, 0))
    for rank in range(size):
        own = rank_directory(directory, rank)
        if first.size != size:
            raise StartError(
                f"{directory} is cut for {first.size} ranks, not for {size}: give "
                f"pipeline_parallel={first.size}"
            )
        found, expected = RankMindIR.read(own), RankMindIR(rank, size, first.export)
        if found != expected:
            raise StartError(
                f"{own / FILE} is of rank {found.rank} of {found.size} of export {found.export}, "
                f"expected rank {rank} of {size} of export {first.export}: the files are not of "
                "one model; export it again"
            )


def check_whole(directory: Path) -> None:
    """Raises StartError if `directory` has a model that is cut for ranks."""
    if rank_directory(directory, 0).is_dir():
        size = RankMindIR.read(rank_directory(directory, 0)).size
        raise StartError(f"{directory} is cut for {size} ranks: give pipeline_parallel={size}")
