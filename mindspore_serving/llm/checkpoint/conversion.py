"""Making a model directory out of another one.  Knows no tensor and no format of weights."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import CONFIG

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
NOT_COPIED = (*WEIGHTS, ".index.json")


def check_is_new(target: Path) -> None:
    """Raises StartError if `target` exists."""
    if target.exists():
        raise StartError(f"{target} exists; give a directory that does not")


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """A directory to fill, which becomes `target` when the block ends without an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=target.parent) as unfinished:
        directory = Path(unfinished) / target.name
        directory.mkdir()
        yield directory
        directory.rename(target)


def write_other_files(source: Path, directory: Path, config: Mapping[str, Any]) -> None:
    """Write `config` as config.json, and copy what `source` has beside it and the weights."""
    for path in source.iterdir():
        if path.is_file() and not path.name.endswith(NOT_COPIED) and path.name != CONFIG:
            shutil.copyfile(path, directory / path.name)
    (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
