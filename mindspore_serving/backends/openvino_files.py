"""Models of files as OpenVINO models that can be changed and saved; none is compiled."""

from pathlib import Path
from typing import Any

from mindspore_serving.backends import formats
from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.lite_openvino import open_lite_model
from mindspore_serving.backends.mindir_signature import read_graph_file
from mindspore_serving.backends.source import check_files
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import InvalidInputs, StartError

MINDIR_SUFFIXES = (".mindir", ".ms")


def open_file(path: str) -> tuple[Any, object]:
    """Return the model of a MindIR or Lite file, or of one that OpenVINO reads.

    The second value has its weights, and must be kept while the model is used.  Raises StartError.
    """
    path = str(Path(path).absolute())
    is_mindir = path.endswith(MINDIR_SUFFIXES)
    name = "mindir_openvino" if is_mindir else "openvino"
    formats.require(name)
    source = ModelSource(DeclaredModel(key=Path(path).name, format=name), (path,))
    check_files(source)
    if not is_mindir:
        from mindspore_serving.backends.openvino import read_model

        return read_model(source, path), None
    if path.endswith(".ms"):
        return open_lite_model(source, path), None
    from mindspore_serving.backends.mindir_openvino import open_model

    return open_model(source, path, read_graph_file(source, path))


def save(model: Any, target: Path) -> None:
    """Write OUT.xml and, beside it, its weights in OUT.bin."""
    import openvino

    openvino.save_model(model, str(target), compress_to_fp16=False)


def check_target(target: Path) -> None:
    """Check that OUT.xml and OUT.bin can be created.

    Raises InvalidInputs for another suffix, StartError if a file exists or the directory does not.
    """
    if target.suffix != ".xml":
        raise InvalidInputs(
            f"the target is '{target}', expected a name that ends in .xml: it is OpenVINO IR, "
            "with its weights in .bin beside it.  OpenVINO cannot write ONNX"
        )
    for path in (target, target.with_suffix(".bin")):
        if path.exists():
            raise StartError(f"'{path}' already exists")
    if not target.parent.is_dir():
        raise StartError(f"there is no directory '{target.parent}'")
