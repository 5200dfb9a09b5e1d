"""`mindspore-serving quantize`: write a model with fewer bits."""

from pathlib import Path

from mindspore_serving.backends.openvino_files import MINDIR_SUFFIXES
from mindspore_serving.cli.tool_settings import QuantizeSettings
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.hub.resolve import resolve

_FILES = (*MINDIR_SUFFIXES, ".onnx", ".xml", ".tflite", ".pdmodel")


def run(settings: QuantizeSettings) -> int:
    """Write the model, print what it lost, and return 0.  Raises ServingError."""
    source = str(resolve(settings.source))
    if source.endswith(_FILES):
        return _quantize_file(source, settings)
    from mindspore_serving.llm.checkpoint.conversion import directory_size
    from mindspore_serving.llm.quantize import Rounding, quantize

    calibration = quantize(
        source, settings.target, settings.mode,
        rounding=Rounding(settings.group, settings.zeros),
        text=settings.calibrate, num_tokens=settings.tokens,
    )  # fmt: skip
    if calibration is not None:
        print(calibration.summary())
    sizes = [directory_size(Path(path)) >> 20 for path in (source, settings.target)]
    print(f"Wrote {settings.target}: {settings.mode}, {sizes[1]} MiB ({sizes[0]} MiB before)")
    return 0


def _quantize_file(source: str, settings: QuantizeSettings) -> int:
    from mindspore_serving.backends.quantization import quantize

    if settings.mode != "int8" or settings.calibrate is None:
        raise InvalidInputs(
            f"'{source}' is no checkpoint of a language model: it is quantised to int8 alone, with "
            "--calibrate DATA.npz, an array for each input (numpy.savez)"
        )
    comparison = quantize(source, settings.target, settings.calibrate, settings.samples)
    print(comparison.summary())
    weights = Path(settings.target).with_suffix(".bin")
    sizes = [Path(path).stat().st_size / 2**20 for path in (source, weights)]
    print(f"Wrote {settings.target} and {weights.name}: {sizes[1]:.1f} MiB ({sizes[0]:.1f} before)")
    return 0
