"""Zero-shot classification of images: each with the labels of its request, by towers of both."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving import log
from mindspore_serving.core.tasks import ZERO_SHOT, TaskOptions
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed
from mindspore_serving.llm.engine.dual_encoder import DualEncoder
from mindspore_serving.llm.engine.encoder import MAX_IMAGES, count_fitting
from mindspore_serving.llm.engine.labels import PROBLEMS, Labels, softmax
from mindspore_serving.llm.engine.pooler import PromptText
from mindspore_serving.llm.engine.request import check_prompt
from mindspore_serving.llm.images.reader import open_processor, process_image
from mindspore_serving.llm.step import Vectors
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from mindspore_serving.tasks.images import decode_image
from mindspore_serving.tasks.options import named_inputs, read_int, read_text

Outcome: TypeAlias = "tuple[Value, ...] | ServingError"
Compute: TypeAlias = Callable[[Sequence[PromptText]], Vectors]

TEMPLATE = "This is a photo of {}."
AS_COMPUTED = PROBLEMS[0]  # one label of CLIP has the probability 1, as in transformers
MAX_LABELS = 256  # of an image
PER_TOKEN = 64  # characters; no token is longer, so a longer text cannot fit


@dataclass(frozen=True, slots=True)
class _Query:
    """Image with its labels, whose texts are those of `tokens`."""

    image: PromptText
    labels: Sequence[str]
    tokens: Sequence[tuple[int, ...]]
    top_k: int


class ZeroShotTask:
    """Towers for texts and images, as a classifier of images.  Used by one thread.

    `compute` is `DualEncoder.compute` on the thread of the encoder.  An encoder that `is_owned` is
    closed with the task.
    """

    def __init__(
        self,
        directory: Path,
        encoder: DualEncoder,
        compute: Compute,
        options: TaskOptions,
        *,
        is_owned: bool,
    ) -> None:
        self._tokenizer = Tokenizer.open(directory)
        self._processor = open_processor(directory)
        self._encoder, self._compute = encoder, compute
        self._options, self._is_owned = options, is_owned
        self.batch_size = min(encoder.config.max_num_seqs, MAX_IMAGES)

    def run(self, rows: Sequence[Sequence[Value]]) -> list[Outcome]:
        """Return one outcome for each row of inputs, in order; an error fails its row alone."""
        outcomes: list[Outcome] = [StageFailed("not answered")] * len(rows)
        queries: dict[int, _Query] = {}
        for index, row in enumerate(rows):
            try:
                queries[index] = self._read(row)
            except InvalidInputs as error:
                outcomes[index] = error
        try:
            answers = self._answer(list(queries.values())) if queries else []
        except ServingError as error:
            log.error("a batch of %d images failed: %s", len(queries), error)
            answers = [StageFailed(str(error))] * len(queries)
        for index, answer in zip(queries, answers, strict=True):
            outcomes[index] = answer
        return outcomes

    def close(self) -> None:
        if self._is_owned:
            self._encoder.close()

    def _answer(self, queries: Sequence[_Query]) -> list[Outcome]:
        towers = self._encoder.runner
        texts = self._embed_texts({tokens for query in queries for tokens in query.tokens})
        images = self._compute([query.image for query in queries])
        outcomes: list[Outcome] = []
        for query, image in zip(queries, images, strict=True):
            cosines = np.stack([texts[tokens] for tokens in query.tokens]) @ image
            logits = (cosines * towers.scale + towers.bias).astype(np.float32)
            scores = 1 / (1 + np.exp(-logits)) if towers.family.is_multi_label else softmax(logits)
            labels = Labels(tuple(query.labels), AS_COMPUTED)
            outcomes.append(labels.answer(scores, query.top_k))
        return outcomes

    def _embed_texts(self, texts: set[tuple[int, ...]]) -> dict[tuple[int, ...], Vectors]:
        """Return the vector of each text, those of similar length computed together."""
        order = sorted(texts, key=len)
        vectors: dict[tuple[int, ...], Vectors] = {}
        while order:
            count = count_fitting([len(tokens) for tokens in order], self._encoder.config)
            batch, order = order[:count], order[count:]
            rows = self._compute([PromptText(list(tokens)) for tokens in batch])
            vectors.update(zip(batch, rows, strict=True))
        return vectors

    def _read(self, row: Sequence[Value]) -> _Query:
        inputs = named_inputs(ZERO_SHOT, row)
        labels = read_labels(read_text(inputs, "candidate_labels"))
        template = TEMPLATE
        if "hypothesis_template" in inputs:
            template = read_text(inputs, "hypothesis_template")
        if template.count("{}") != 1:
            problem = f"hypothesis_template is {template!r:.80}"
            raise InvalidInputs(f"{problem}, expected a text with one {{}}")
        towers = self._encoder.runner
        limits = towers.max_model_len, towers.vocab_size
        texts = [template.replace("{}", label) for label in labels]
        tokens = [encode_text(self._tokenizer, text, *limits) for text in texts]
        top_k = read_int(inputs, "top_k", self._options.top_k)
        image = decode_image(inputs.get("image"), self._options)
        return _Query(
            PromptText([], image=process_image(self._processor, image)), labels, tokens, top_k
        )


def encode_text(
    tokenizer: Tokenizer, text: str, max_tokens: int, vocab_size: int
) -> tuple[int, ...]:
    """Return the tokens of the text of a label.  Raises InvalidInputs if they are too many."""
    check_text_size(text, max_tokens)
    try:
        return tuple(check_prompt(tokenizer.encode(text), vocab_size, max_tokens))
    except InvalidInputs as error:
        raise InvalidInputs(f"candidate_labels: {error}") from None


def check_text_size(text: str, max_tokens: int) -> None:
    """Raise InvalidInputs for a text of labels that is too long to be split into tokens."""
    if len(text) > PER_TOKEN * max_tokens:
        problem = f"a text has {len(text)} characters, the model takes {max_tokens} tokens"
        raise InvalidInputs(f"candidate_labels: {problem}")


def read_labels(text: str) -> list[str]:
    """Return the labels of a JSON list, or of a text that separates them by commas.

    Raises InvalidInputs.
    """
    values: Any = text.split(",")
    if text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidInputs("candidate_labels is no JSON list of texts") from None
    if not all(isinstance(value, str) and value.strip() for value in values):
        raise InvalidInputs("candidate_labels has an entry that is empty or no text")
    if not 1 <= len(values) <= MAX_LABELS:
        count = len(values)
        raise InvalidInputs(f"candidate_labels has {count} labels, expected 1 to {MAX_LABELS}")
    return [value.strip() for value in values]
