"""Zero-shot detection: boxes of the labels of a request in an image.

OWL-ViT and OWLv2 compare boxes with a vector of each label; Grounding DINO reads all labels as one
text, and compares boxes with its tokens.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.tasks import DETECTION, GROUNDED, TaskOptions
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.reader import open_processor, process_image
from mindspore_serving.llm.step import Vectors
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from mindspore_serving.tasks.images import answer_each, decode_image, size_of_image
from mindspore_serving.tasks.options import named_inputs, read_int, read_number, read_text
from mindspore_serving.tasks.transformers_model import apply_model, open_model
from mindspore_serving.tasks.zero_shot_task import (
    Outcome,
    check_text_size,
    encode_text,
    read_labels,
)

THRESHOLD = 0.1  # default score of a box
SEPARATORS = ".?"  # of labels in a text of Grounding DINO
Arrays = Mapping[str, "npt.NDArray[Any]"]


@dataclass(frozen=True, slots=True)
class LabelText:
    """Inputs of a model for the labels, and for each token of a text the index of its label.

    `owners` is int [tokens], -1 for tokens of no label; None if each label is a text of its own.
    """

    inputs: Arrays
    owners: "npt.NDArray[np.int64] | None" = None


class DetectionTask:
    """Detector with its processor.  Used by one thread; each image has a pass of its own."""

    def __init__(self, directory: Path, options: TaskOptions, config: EngineConfig) -> None:
        self._tokenizer = Tokenizer.open(directory)
        self._processor = open_processor(directory)
        self._model = open_model(directory, DETECTION, config)
        self._is_grounded = self._model.config.architectures[0] in GROUNDED
        self._options = options
        self.batch_size = 1

    def run(self, rows: Sequence[Sequence[Value]]) -> list[Outcome]:
        """Return one outcome for each row of inputs, in order; an error fails its row alone."""
        return answer_each(rows, self._detect)

    def close(self) -> None:
        self._model = self._processor = None

    def _detect(self, row: Sequence[Value]) -> tuple[Value, ...]:
        inputs = named_inputs(DETECTION, row)
        labels = read_labels(read_text(inputs, "candidate_labels"))
        text = self._joined_text(labels) if self._is_grounded else self._separate_texts(labels)
        threshold = read_number(inputs, "threshold", THRESHOLD, 1.0)
        top_k = read_int(inputs, "top_k", self._options.top_k)
        image = decode_image(inputs.get("image"), self._options)
        processed = process_image(self._processor, image)
        outputs = apply_model(self._model, {**processed, **text.inputs})
        size = size_of_image(image)
        if text.owners is None:
            (boxes,) = self._processor.post_process_object_detection(
                outputs, threshold=threshold, target_sizes=[size]
            )
            arrays = [boxes[name].cpu().numpy() for name in ("scores", "labels", "boxes")]
        else:
            logits, boxes = (
                array[0].float().cpu().numpy() for array in (outputs.logits, outputs.pred_boxes)
            )
            arrays = _read_boxes(logits, boxes, text.owners, threshold, size)
        scores, indices, corners = arrays
        return (_to_json(scores, indices, corners, labels, top_k),)

    def _separate_texts(self, labels: Sequence[str]) -> LabelText:
        """Return the inputs of OWL-ViT: each label is a row of tokens."""
        text = self._model.config.text_config
        limit, size = text.max_position_embeddings, text.vocab_size
        tokens = [encode_text(self._tokenizer, label, limit, size) for label in labels]
        shape = (len(tokens), max(map(len, tokens)))
        ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, label in enumerate(tokens):
            ids[row, : len(label)], mask[row, : len(label)] = label, 1
        return LabelText({"input_ids": ids, "attention_mask": mask})

    def _joined_text(self, labels: Sequence[str]) -> LabelText:
        """Return the inputs of Grounding DINO: "cat. dog.", as in its training."""
        limit = self._model.config.max_text_len
        text, ends = "", []
        for label in labels:
            if any(separator in label for separator in SEPARATORS):
                raise InvalidInputs(
                    f"candidate_labels has {label!r:.80}, expected labels without {SEPARATORS!r}, "
                    "which separate labels of this model"
                )
            text += f"{' ' * bool(text)}{label.lower()}."
            ends.append(len(text))
        check_text_size(text, limit)
        tokens = self._tokenizer.encode_whole(text)
        if len(tokens.ids) > limit:
            raise InvalidInputs(
                f"candidate_labels have {len(tokens.ids)} tokens, the model takes {limit} together"
            )
        starts = np.array([start for start, _ in tokens.offsets])
        owners = np.searchsorted(ends, starts, side="right")
        is_separator = [text[begin:end] in SEPARATORS for begin, end in tokens.offsets]
        owners[np.array(tokens.is_special) | np.array(is_separator)] = -1
        ids = np.array([tokens.ids], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        return LabelText(inputs, owners)


def _read_boxes(
    logits: Vectors,
    boxes: Vectors,
    owners: "npt.NDArray[np.int64]",
    threshold: float,
    size: tuple[int, int],
) -> list["npt.NDArray[Any]"]:
    """Return scores, indices of labels, and corners in pixels of the boxes over `threshold`.

    `logits` are [boxes, tokens or more] and `boxes` [boxes, 4] the centre, width and height as
    shares of the image.  A box has the score of its likeliest token, which may also be a separator,
    as in transformers, and the label of its likeliest token of a label.
    """
    highest = 1 / (1 + np.exp(-logits.max(1).astype(np.float64)))
    is_label = np.flatnonzero(owners >= 0)
    best = logits[:, is_label].argmax(1)
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    height, width = size
    corners = np.concatenate([centre - half, centre + half], 1) * [width, height, width, height]
    is_kept = highest > threshold
    return [highest[is_kept], owners[is_label][best][is_kept], corners[is_kept]]


def _to_json(
    scores: "npt.NDArray[Any]",
    indices: "npt.NDArray[Any]",
    corners: "npt.NDArray[Any]",
    labels: Sequence[str],
    top_k: int,
) -> str:
    """Return the `top_k` likeliest boxes, in pixels, as JSON; 0 for all."""
    order = np.argsort(-scores, kind="stable")[: top_k or None]
    rows = [
        {
            "label": labels[int(indices[row])],
            "score": round(float(scores[row]), 6),
            "box": [round(float(number), 2) for number in corners[row]],
        }
        for row in order
    ]
    return json.dumps(rows, ensure_ascii=False)
