"""Image classification: images to batches of pixels, and logits to labels.

The directory's own image processor resizes and normalises.  It knows no file formats.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving import log
from mindspore_serving.core.tasks import TaskOptions
from mindspore_serving.core.value import Value
from mindspore_serving.errors import ServingError, StageFailed, StartError
from mindspore_serving.llm.checkpoint.model_files import read_json
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.labels import Labels, read_labels
from mindspore_serving.llm.images.reader import open_processor, process_image
from mindspore_serving.tasks.images import decode_image
from mindspore_serving.tasks.options import named_inputs, read_int
from mindspore_serving.tasks.transformers_model import compute, open_model

Pixels: TypeAlias = "npt.NDArray[np.float32]"
Outcome: TypeAlias = "tuple[Value, ...] | ServingError"

TASK = "image-classification"
MAX_BATCH = 16  # images per pass, whose pixels are in memory together


class ImageTask:
    """Image classifier with its processor.  Used by one thread."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        labels: Labels,
        *,
        options: TaskOptions,
        config: EngineConfig,
    ) -> None:
        self._model = model
        self._processor = processor
        self._labels = labels
        self._options = options
        self.batch_size = min(config.max_num_seqs, MAX_BATCH)

    @classmethod
    def open(cls, directory: Path, options: TaskOptions, config: EngineConfig) -> "ImageTask":
        """Open the model, its processor and its labels.

        Raises StartError: the library is missing, the processor is missing or broken, the model
        cannot be loaded, or the labels do not fit it.
        """
        processor = open_processor(directory)
        model = open_model(directory, TASK, config)
        try:
            pixels = _pixels(processor, np.zeros((64, 64, 3), np.uint8))
            (logits,) = compute(model, {"pixel_values": pixels[None]}, "logits")
        except ServingError as error:
            raise StartError(f"{directory} cannot be used for {TASK}: {error}") from error
        labels = read_labels(read_json(directory / "config.json"), len(logits))
        return cls(model, processor, labels, options=options, config=config)

    def run(self, rows: Sequence[Sequence[Value]]) -> list[Outcome]:
        """Return one outcome for each row of inputs, in order; an error fails its row alone."""
        outcomes: list[Outcome] = [StageFailed("not answered")] * len(rows)
        groups: dict[tuple[int, ...], list[tuple[int, Pixels, int]]] = {}
        for index, row in enumerate(rows):
            try:
                pixels, top_k = self._read(row)
                groups.setdefault(pixels.shape, []).append((index, pixels, top_k))
            except ServingError as error:
                outcomes[index] = error
        for group in groups.values():
            for (index, _, top_k), logits in zip(group, self._compute(group), strict=True):
                is_error = isinstance(logits, ServingError)
                outcomes[index] = logits if is_error else self._labels.answer(logits, top_k)
        return outcomes

    def close(self) -> None:
        self._model = self._processor = None

    def _compute(self, group: Sequence[tuple[int, Pixels, int]]) -> Sequence[Any]:
        batch = np.stack([pixels for _, pixels, _ in group])
        try:
            return list(compute(self._model, {"pixel_values": batch}, "logits"))
        except ServingError as error:
            log.error("a batch of %d images failed: %s", len(group), error)
            return [StageFailed(str(error))] * len(group)

    def _read(self, row: Sequence[Value]) -> tuple[Pixels, int]:
        inputs = named_inputs(TASK, row)
        top_k = read_int(inputs, "top_k", self._options.top_k)
        return _pixels(self._processor, decode_image(inputs.get("image"), self._options)), top_k


def _pixels(processor: Any, image: Any) -> Pixels:
    """Return float32 [channels, height, width].

    Raises InvalidInputs for an image that the processor does not accept.
    """
    pixels = process_image(processor, image)["pixel_values"][0]
    return np.ascontiguousarray(pixels, np.float32)
