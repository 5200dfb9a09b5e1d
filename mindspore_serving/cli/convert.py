"""`mindspore-serving convert`: a MindIR file as OpenVINO IR, for other tools."""

from pathlib import Path

from mindspore_serving.backends import formats
from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.mindir_signature import read_graph_file
from mindspore_serving.backends.source import check_files
from mindspore_serving.cli.tool_settings import ConvertSettings
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import InvalidInputs, StartError

_FORMAT = "mindir_openvino"


def run(settings: ConvertSettings) -> int:
    """Write the two files; the status is 0.  Raises StartError."""
    target = Path(settings.target)
    check_target(target)
    formats.require(_FORMAT)
    import openvino

    from mindspore_serving.backends.mindir_openvino import open_model

    path = str(Path(settings.source).absolute())
    source = ModelSource(DeclaredModel(key=settings.source, format=_FORMAT), (path,))
    check_files(source)
    model, _weights = open_model(source, path, read_graph_file(source, path))
    openvino.save_model(model, str(target), compress_to_fp16=False)
    print(f"written: {target} and {target.with_suffix('.bin')}")
    return 0


def check_target(target: Path) -> None:
    """Raise StartError for a file that cannot be made, InvalidInputs for one of another form."""
    if target.suffix != ".xml":
        raise InvalidInputs(
            f"'{target}' is given; what is written is OpenVINO IR, so the name must end in .xml "
            "(its weights go to .bin beside it).  ONNX is not written: OpenVINO cannot write it"
        )
    for path in (target, target.with_suffix(".bin")):
        if path.exists():
            raise StartError(f"'{path}' exists already")
    if not target.parent.is_dir():
        raise StartError(f"there is no directory '{target.parent}'")
