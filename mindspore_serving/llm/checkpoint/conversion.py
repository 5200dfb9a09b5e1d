"""Conversion of one model directory to another, and its command line.

Knows no tensor and no format of weights.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import CONFIG

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
NOT_COPIED = (*WEIGHTS, ".index.json")
# Names of files that describe the weights of the source, or stand in for config.json.
DESCRIPTIONS = (
    *("metadata.json", "common.json", "latest_checkpointed_iteration.txt", "predict_*.yaml"),
    *("quantization_description.json", "quant_model_description*.json", "*strategy*.json"),
)


def check_is_new(target: Path) -> None:
    """Raise StartError if `target` exists."""
    if target.exists():
        raise StartError(f"{target} exists; give a directory that does not")


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Hold a directory to fill, which becomes `target` when the block ends without an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=target.parent) as unfinished:
        directory = Path(unfinished) / target.name
        directory.mkdir()
        yield directory
        directory.rename(target)


def write_other_files(source: Path, directory: Path, config: Mapping[str, Any]) -> None:
    """Write `config` as config.json, and copy the files of `source` except its weights."""
    for path in source.iterdir():
        is_of_weights = path.name.endswith(NOT_COPIED) or any(map(path.match, DESCRIPTIONS))
        if path.is_file() and not is_of_weights and path.name != CONFIG:
            shutil.copyfile(path, directory / path.name)
    (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def directory_size(directory: Path) -> int:
    """Return the size of the files in `directory`, in bytes."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


def run_command(
    convert: Callable[..., object],
    arguments: Sequence[str] | None,
    modes: Iterable[str] = (),
    counts: Mapping[str, str] | None = None,
) -> int:
    """Parse the command line, call `convert`, and return the exit status.

    `convert` gets source, target, mode (if there are `modes`), and an int for each of `counts`
    (name -> help text; the default is 1).
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m mindspore_serving.llm.{convert.__name__}",
        description=(convert.__doc__ or "").split("\n\n")[0],
    )
    parser.add_argument("source", help="directory with config.json and *.safetensors")
    parser.add_argument("target", help="directory to create")
    if modes:
        parser.add_argument("mode", choices=list(modes))
    for name, meaning in (counts or {}).items():
        parser.add_argument(f"--{name}", type=int, action="append", help=meaning)
    values = vars(parser.parse_args(arguments))
    for name in counts or ():
        first, *more = values[name] or [1]
        if more:
            parser.error(f"argument --{name}: given twice, but it takes a single value")
        values[name] = first
    try:
        convert(**values)
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
