"""Zero-shot detection: boxes of the labels of a request in an image, by OWL-ViT and OWLv2."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving.core.tasks import DETECTION, TaskOptions
from mindspore_serving.core.value import Value
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.reader import open_processor, process_image
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from mindspore_serving.tasks.images import answer_each, decode_image, size_of_image
from mindspore_serving.tasks.options import named_inputs, read_int, read_number, read_text
from mindspore_serving.tasks.transformers_model import apply_model, open_model
from mindspore_serving.tasks.zero_shot_task import Outcome, encode_text, read_labels

THRESHOLD = 0.1  # default score of a box


class DetectionTask:
    """Detector with its processor.  Used by one thread; each image has a pass of its own."""

    def __init__(self, directory: Path, options: TaskOptions, config: EngineConfig) -> None:
        self._tokenizer = Tokenizer.open(directory)
        self._processor = open_processor(directory)
        self._model = open_model(directory, DETECTION, config)
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
        text = self._model.config.text_config
        limit, size = text.max_position_embeddings, text.vocab_size
        tokens = [encode_text(self._tokenizer, label, limit, size) for label in labels]
        threshold = read_number(inputs, "threshold", THRESHOLD, 1.0)
        top_k = read_int(inputs, "top_k", self._options.top_k)
        image = decode_image(inputs.get("image"), self._options)
        outputs = self._compute(process_image(self._processor, image), tokens)
        (boxes,) = self._processor.post_process_object_detection(
            outputs, threshold=threshold, target_sizes=[size_of_image(image)]
        )
        return (_to_json(boxes, labels, top_k),)

    def _compute(self, image: dict[str, Any], tokens: Sequence[Sequence[int]]) -> Any:
        shape = (len(tokens), max(map(len, tokens)))
        ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, label in enumerate(tokens):
            ids[row, : len(label)], mask[row, : len(label)] = label, 1
        inputs = {**image, "input_ids": ids, "attention_mask": mask}
        return apply_model(self._model, inputs)


def _to_json(boxes: Any, labels: Sequence[str], top_k: int) -> str:
    """Return the `top_k` likeliest boxes, in pixels, as JSON; 0 for all."""
    scores = boxes["scores"].cpu().numpy()
    order = np.argsort(-scores, kind="stable")[: top_k or None]
    corners = boxes["boxes"].cpu().numpy()
    indices = boxes["labels"].cpu().numpy()
    rows = [
        {
            "label": labels[indices[row]],
            "score": round(float(scores[row]), 6),
            "box": [round(float(number), 2) for number in corners[row]],
        }
        for row in order
    ]
    return json.dumps(rows, ensure_ascii=False)
