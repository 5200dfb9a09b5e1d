"""Tasks whose answers are maps of the size of the image: of its depth, or of its segments."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving.core.tasks import DEPTH, TaskOptions
from mindspore_serving.core.value import Value
from mindspore_serving.errors import ServingError, StageFailed, StartError
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_json
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.labels import read_labels
from mindspore_serving.llm.images.reader import open_processor, process_image
from mindspore_serving.tasks.images import answer_each, decode_image, size_of_image
from mindspore_serving.tasks.options import named_inputs
from mindspore_serving.tasks.text_task import Outcome
from mindspore_serving.tasks.transformers_model import apply_model, open_model

MAX_PIXELS = 16_000_000  # of an answer: several arrays of that size are in memory


class MapTask:
    """Model of `task` with its processor.  Used by one thread; each image has a pass of its own.

    Raises StartError: the model or its processor is missing or broken, or a pass fails.
    """

    def __init__(
        self, directory: Path, task: str, options: TaskOptions, config: EngineConfig
    ) -> None:
        self._processor = open_processor(directory)
        self._model = open_model(directory, task, config)
        self._task, self._options = task, options
        self.batch_size = 1
        try:
            outputs = self._compute(np.zeros((64, 64, 3), np.uint8))
        except ServingError as error:
            raise StartError(f"{directory} cannot be used for {task}: {error}") from error
        self._write: Callable[[Any, tuple[int, int]], tuple[Value, ...]] = self._write_depth
        if task != DEPTH:
            self._labels = read_labels(read_json(directory / CONFIG), outputs.logits.shape[1]).names
            self._write = self._write_segments

    def run(self, rows: Sequence[Sequence[Value]]) -> list[Outcome]:
        """Return one outcome for each row of inputs, in order; an error fails its row alone."""
        return answer_each(rows, self._answer)

    def close(self) -> None:
        self._model = self._processor = None

    def _answer(self, row: Sequence[Value]) -> tuple[Value, ...]:
        inputs = named_inputs(self._task, row)
        image = decode_image(inputs.get("image"), self._options, MAX_PIXELS)
        return self._write(self._compute(image), size_of_image(image))

    def _compute(self, image: Any) -> Any:
        return apply_model(self._model, process_image(self._processor, image))

    def _write_depth(self, outputs: Any, size: tuple[int, int]) -> tuple[Value, ...]:
        """Return the depth as grey levels, and the depths of the darkest and the brightest."""
        (result,) = self._processor.post_process_depth_estimation(outputs, [size])
        depth = result["predicted_depth"].float().cpu().numpy()
        lowest, highest = np.array(depth.min()), np.array(depth.max())
        if not np.isfinite([lowest, highest]).all():
            raise StageFailed("the model gives depths that are no finite numbers")
        levels = (depth - lowest) / max(highest - lowest, np.finfo(np.float32).tiny) * 255
        return _to_png(levels.astype(np.uint8)), lowest, highest

    def _write_segments(self, outputs: Any, size: tuple[int, int]) -> tuple[Value, ...]:
        """Return the number of the label of each pixel, and the labels of the map as JSON."""
        numbers = _likeliest(outputs.logits, size)
        counts = np.bincount(numbers.reshape(-1), minlength=len(self._labels))
        segments = [
            {"id": number, "label": self._labels[number], "pixels": int(counts[number])}
            for number in np.flatnonzero(counts).tolist()
        ]
        return _to_png(numbers), json.dumps(segments, ensure_ascii=False)


def _likeliest(logits: Any, size: tuple[int, int]) -> Any:
    """Return the label of each pixel, uint8 or uint16 of `size`, from logits [1, labels, h, w].

    Labels are enlarged one by one: together they would take as much memory as there are labels.
    """
    import torch

    best = torch.full(size, -torch.inf, device=logits.device)
    dtype = torch.uint8 if logits.shape[1] <= 256 else torch.int32
    numbers = torch.zeros(size, dtype=dtype, device=logits.device)
    for number in range(logits.shape[1]):
        scores = torch.nn.functional.interpolate(
            logits[:, number : number + 1].float(), size=size, mode="bilinear", align_corners=False
        )[0, 0]
        is_better = scores > best
        numbers.masked_fill_(is_better, number)
        best = torch.where(is_better, scores, best)
    array = numbers.cpu().numpy()
    return array if array.dtype == np.uint8 else array.astype(np.uint16)


def _to_png(levels: Any) -> bytes:
    """Return a grey PNG file of uint8 or uint16 levels."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
