"""`mindspore-serving convert`: write a MindIR or Lite file as OpenVINO IR, for other tools."""

from pathlib import Path

from mindspore_serving.backends.openvino_files import check_target, open_file, save
from mindspore_serving.cli.tool_settings import ConvertSettings
from mindspore_serving.hub.resolve import resolve


def run(settings: ConvertSettings) -> int:
    """Write the two files and return 0.  Raises StartError."""
    target = Path(settings.target)
    check_target(target)
    model, _weights = open_file(resolve(settings.source))
    save(model, target)
    print(f"written: {target} and {target.with_suffix('.bin')}")
    return 0
