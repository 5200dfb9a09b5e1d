"""Tasks whose answers are maps of the size of the image: of its depth, or of its segments."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
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
from mindspore_serving.tasks.options import named_inputs, read_choice, read_number
from mindspore_serving.tasks.query_masks import (
    FAMILIES,
    SEMANTIC,
    QueryMasks,
    Segmentation,
    Thresholds,
)
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
        settings = self._model.config
        self._masks: QueryMasks | None = None
        if settings.model_type in FAMILIES:
            self._masks = FAMILIES[settings.model_type](directory, self._processor, settings)
        self._subtasks = self._masks.subtasks if self._masks else (SEMANTIC,)
        try:
            outputs = self._compute(np.zeros((64, 64, 3), np.uint8), self._subtasks[0])
        except ServingError as error:
            raise StartError(f"{directory} cannot be used for {task}: {error}") from error
        if task != DEPTH:
            count = self._score_labels(outputs, (64, 64)).shape[1]
            self._labels = read_labels(read_json(directory / CONFIG), count).names

    def run(self, rows: Sequence[Sequence[Value]]) -> list[Outcome]:
        """Return one outcome for each row of inputs, in order; an error fails its row alone."""
        return answer_each(rows, self._answer)

    def close(self) -> None:
        self._model = self._processor = None

    def _answer(self, row: Sequence[Value]) -> tuple[Value, ...]:
        inputs = named_inputs(self._task, row)
        subtask = read_choice(inputs, "subtask", self._subtasks)
        thresholds = _read_thresholds(inputs)
        image = decode_image(inputs.get("image"), self._options, MAX_PIXELS)
        outputs, size = self._compute(image, subtask), size_of_image(image)
        if self._task == DEPTH:
            return self._write_depth(outputs, size)
        if self._masks is None or subtask == SEMANTIC:
            return self._write_labels(outputs, size)
        return self._write_segments(self._masks.segment(outputs, subtask, thresholds, size))

    def _compute(self, image: Any, subtask: str) -> Any:
        if self._masks is None:
            return apply_model(self._model, process_image(self._processor, image))
        return apply_model(self._model, self._masks.read(image, subtask))

    def _write_depth(self, outputs: Any, size: tuple[int, int]) -> tuple[Value, ...]:
        """Return the depth as grey levels, and the depths of the darkest and the brightest."""
        (result,) = self._processor.post_process_depth_estimation(outputs, [size])
        depth = result["predicted_depth"].float().cpu().numpy()
        lowest, highest = np.array(depth.min()), np.array(depth.max())
        if not np.isfinite([lowest, highest]).all():
            raise StageFailed("the model gives depths that are no finite numbers")
        levels = (depth - lowest) / max(highest - lowest, np.finfo(np.float32).tiny) * 255
        return _to_png(levels.astype(np.uint8)), lowest, highest

    def _score_labels(self, outputs: Any, size: tuple[int, int]) -> Any:
        """Return the scores of labels [1, labels, h, w] of an image of `size`, not enlarged."""
        return self._masks.score_labels(outputs, size) if self._masks else outputs.logits

    def _write_labels(self, outputs: Any, size: tuple[int, int]) -> tuple[Value, ...]:
        """Return the number of the label of each pixel, and the labels of the map as JSON."""
        numbers = _likeliest(self._score_labels(outputs, size), size)
        counts = np.bincount(numbers.reshape(-1), minlength=len(self._labels))
        return _to_png(numbers), _to_json(
            {"id": number, "label": self._labels[number], "pixels": int(counts[number])}
            for number in np.flatnonzero(counts).tolist()
        )

    def _write_segments(self, segmentation: Segmentation) -> tuple[Value, ...]:
        """Return the number of the segment of each pixel or 0, and the segments as JSON."""
        counts = np.bincount(segmentation.ids.reshape(-1), minlength=len(segmentation.segments) + 1)
        dtype = np.uint8 if len(counts) <= 256 else np.uint16
        return _to_png(segmentation.ids.astype(dtype)), _to_json(
            {
                "id": number,
                "label": self._labels[segment.label],
                "score": round(segment.score, 6),
                "pixels": int(counts[number]),
            }
            for number, segment in enumerate(segmentation.segments, 1)
        )


def _read_thresholds(inputs: Mapping[str, Value]) -> Thresholds:
    """Return the thresholds of a request.  Raises InvalidInputs."""
    default = Thresholds()
    return Thresholds(
        read_number(inputs, "threshold", default.score, 1.0),
        read_number(inputs, "mask_threshold", default.mask, 1.0),
        read_number(inputs, "overlap_mask_area_threshold", default.overlap, 1.0),
    )


def _to_json(segments: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps(list(segments), ensure_ascii=False)


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
