"""`mindspore-serving quantize`: write a checkpoint of a language model with fewer bits."""

from pathlib import Path

from mindspore_serving.cli.tool_settings import QuantizeSettings
from mindspore_serving.hub.resolve import resolve
from mindspore_serving.llm.checkpoint.conversion import directory_size
from mindspore_serving.llm.quantize import Rounding, quantize


def run(settings: QuantizeSettings) -> int:
    """Write the checkpoint, print its size, and return 0.  Raises ServingError."""
    source = resolve(settings.source)
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
