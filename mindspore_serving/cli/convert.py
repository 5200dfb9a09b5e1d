"""`mindspore-serving convert`: write a MindIR or Lite file as OpenVINO IR, for other tools."""

from pathlib import Path

from mindspore_serving.backends import formats
from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.lite_openvino import open_lite_model
from mindspore_serving.backends.mindir_signature import read_graph_file
from mindspore_serving.backends.source import check_files
from mindspore_serving.cli.tool_settings import ConvertSettings
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.hub.resolve import resolve

_FORMAT = "mindir_openvino"


def run(settings: ConvertSettings) -> int:
    """Write the two files and return 0.  Raises StartError."""
    target = Path(settings.target)
    check_target(target)
    formats.require(_FORMAT)
    import openvino

    from mindspore_serving.backends.mindir_openvino import open_model

    path = str(Path(resolve(settings.source)).absolute())
    source = ModelSource(DeclaredModel(key=settings.source, format=_FORMAT), (path,))
    check_files(source)
    if path.endswith(".ms"):
        model = open_lite_model(source, path)
    else:
        model, _weights = open_model(source, path, read_graph_file(source, path))
    openvino.save_model(model, str(target), compress_to_fp16=False)
    print(f"written: {target} and {target.with_suffix('.bin')}")
    return 0


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
