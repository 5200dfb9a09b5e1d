"""`mindspore-serving quantize`: a language model's checkpoint with fewer bits."""

from pathlib import Path

from mindspore_serving.cli.tool_settings import QuantizeSettings
from mindspore_serving.llm.checkpoint.conversion import directory_size
from mindspore_serving.llm.quantize import Rounding, quantize


def run(settings: QuantizeSettings) -> int:
    """Write it, and say how large it is; the status is 0.  Raises ServingError."""
    found = quantize(
        settings.source, settings.target, settings.mode,
        rounding=Rounding(settings.group, settings.zeros),
        text=settings.calibrate, num_tokens=settings.tokens,
    )  # fmt: skip
    if found is not None:
        print(found.summary())
    sizes = [directory_size(Path(one)) >> 20 for one in (settings.source, settings.target)]
    print(f"Wrote {settings.target}: {settings.mode}, {sizes[1]} MiB ({sizes[0]} MiB before)")
    return 0
