"""Models that embed or classify and do not generate: prompts in, a vector for each out.

Every step computes whole prompts: the oldest, and those nearest to it in length that fit.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs, ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.adapters import AdapterNames
from mindspore_serving.llm.engine.pinning import PinnedPrefix
from mindspore_serving.llm.engine.pooler import Pooler, PromptText, open_pooler, pool_texts
from mindspore_serving.llm.engine.request import check_prompt, check_room
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.models import is_classifier_config
from mindspore_serving.llm.models.layouts import open_converted
from mindspore_serving.llm.runtimes import open_encoder
from mindspore_serving.llm.step import EncoderRunner, Vectors

MAX_PADDED_RATIO = 1.5  # positions of a padded batch for each token in it
MAX_IMAGES = 16  # in a step: their pixels are in memory together
WINDOW = 1024  # oldest waiting prompts to choose from for a step

GENERATES_NOTHING = "the model is an encoder, which generates no text"

Outputs = list[tuple[str, Vectors | ServingError]]


class Encoder:
    """An encoder with its pooling or its classifier.  Used by one thread."""

    def __init__(self, runner: EncoderRunner, pooler: Pooler, config: EngineConfig) -> None:
        self.runner = runner
        self.config = config
        self.embedding_size = pooler.size(runner.hidden_size)
        self.pooler = pooler

    @classmethod
    def open(
        cls, directory: str | Path, config: EngineConfig, runtime: str = "openvino"
    ) -> "Encoder":
        """Load config.json, *.safetensors and sentence-transformers' files.  Raises StartError."""
        runner = open_encoder(directory, runtime, config)
        try:
            checkpoint = open_converted(directory)
            is_classifier = is_classifier_config(checkpoint.config)
            pooler = open_pooler(checkpoint, runner.hidden_size, classifies=is_classifier)
            return cls(runner, pooler, config)
        except BaseException:
            runner.close()
            raise

    def check(self, prompt_ids: Iterable[int]) -> list[int]:
        """Return the prompt as a list.

        Raises InvalidInputs if it is empty or too long, or has an id that is out of range.
        """
        return check_prompt(prompt_ids, self.runner.vocab_size, self.runner.max_model_len)

    def check_text(self, text: PromptText) -> None:
        """Raise InvalidInputs as `check` does, or for an image."""
        if text.image is not None:
            raise InvalidInputs("the model embeds texts, and no images")
        self.check(text.ids)

    def compute(self, texts: Sequence[PromptText]) -> Vectors:
        """Compute one step: float32 [len(texts), embedding_size]; `check` has passed the texts."""
        prompts = [text.ids for text in texts]
        if any(text.types for text in texts):
            last = self.runner.num_types - 1  # families without types take pairs nevertheless
            types = [text.types or [0] * len(text.ids) for text in texts]
            states = self.runner.run(prompts, [[min(kind, last) for kind in row] for row in types])
        else:
            states = self.runner.run(prompts)
        return pool_texts(self.pooler, states, [len(text.ids) for text in texts], texts)

    def embed(self, prompts: Sequence[list[int]]) -> Vectors:
        """Compute `prompts` in as many steps as it takes, prompts of similar length together."""
        vectors = np.zeros((len(prompts), self.embedding_size), np.float32)
        order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
        while order:
            count = count_fitting([len(prompts[index]) for index in order[:WINDOW]], self.config)
            chosen, order = order[:count], order[count:]
            vectors[chosen] = self.compute([PromptText(prompts[index]) for index in chosen])
        return vectors

    def close(self) -> None:
        """Free the model; nothing may be called afterwards."""
        self.runner.close()


class EncoderEngine:
    """Computes the prompts of many requests at once, driven like `Engine`.

    `max_model_len` is the maximum number of tokens of a prompt.
    """

    can_generate: Literal[False] = False
    is_stepped: Literal[True] = True
    adapters = AdapterNames(())
    memory = None
    num_blocks = block_size = 0  # there is no cache

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = self.embedder = encoder
        self.pooler = encoder.pooler
        self.started: list[str] = []  # stays empty: how long prompts wait is not measured
        self.on_compute: Callable[[list[str], int], None] | None = None  # as of `Engine`
        self.config = encoder.config
        self.max_model_len = encoder.runner.max_model_len
        self.vocab_size = encoder.runner.vocab_size
        self.embedding_size = encoder.embedding_size
        self._waiting: dict[str, PromptText] = {}  # in order of arrival
        self._num_waiting_tokens = self._num_steps = self._num_prompt_tokens = 0

    @property
    def has_work(self) -> bool:
        """True if a step would do anything."""
        return bool(self._waiting)

    def add_embedding(self, request_id: str, prompt_ids: Iterable[int], **options: Any) -> None:
        """Queue a prompt; `options` are further fields of `PromptText`.

        Raises InvalidInputs for a wrong prompt, Overloaded if too many wait.
        """
        prompt = PromptText(list(prompt_ids), **options)
        self.encoder.check_text(prompt)
        if request_id in self._waiting:
            raise InvalidInputs(f"request_id {request_id!r} is in use")
        count, num_tokens = len(self._waiting), self._num_waiting_tokens
        check_room(self.config, "prompts", count, num_tokens, prompt.num_tokens)
        self._waiting[request_id] = prompt
        self._num_waiting_tokens += prompt.num_tokens
        self._num_prompt_tokens += len(prompt.ids)

    def add(self, request_id: str, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidInputs: an encoder generates no text."""
        raise InvalidInputs(GENERATES_NOTHING)

    def pin(self, beginnings: Sequence[PinnedPrefix]) -> NoReturn:
        """Raise StartError: an encoder has no cache."""
        raise StartError("pinned_prompts is set, but the model is an encoder, which has no cache")

    def abort(self, request_id: str) -> bool:
        """Drop a request, which then has no output.  Returns False if there is no such request."""
        prompt = self._waiting.pop(request_id, None)
        self._num_waiting_tokens -= prompt.num_tokens if prompt is not None else 0
        return prompt is not None

    def step(self) -> Outputs:
        """Compute one batch; return a vector, float32 [embedding_size], or an error per request."""
        chosen = self._choose()
        prompts = [self._waiting.pop(request_id) for request_id in chosen]
        if not prompts:
            return []
        self._num_waiting_tokens -= sum(prompt.num_tokens for prompt in prompts)
        self._num_steps += 1
        if self.on_compute is not None:
            self.on_compute(chosen, len(chosen))
        try:
            vectors = self.encoder.compute(prompts)
        except Exception as error:  # whatever a runtime raises must not end the other requests
            log.error("a step of %d prompts failed: %s", len(prompts), error, exc_info=True)
            if not isinstance(error, ServingError):
                error = ServingError("the model failed; see the log")
            return [(request_id, error) for request_id in chosen]
        return list(zip(chosen, vectors, strict=True))

    def do_idle_work(self) -> None:
        """Do nothing: there is nothing to save while no request runs."""

    def describe(self, stored: str = "as stored") -> str:
        """Describe the options and the maximum length of prompts, for people."""
        config, size = self.config, self.embedding_size
        what = f"labels, {size} in all," if self.pooler.labels else f"vectors of {size}"
        return (
            f"weights {config.quantization or 'as stored'}; {what} for "
            f"prompts of up to {self.max_model_len:,} tokens; at most {config.max_num_seqs} "
            f"prompts and {config.max_num_batched_tokens} tokens in a step"
        )

    def stats(self) -> EngineStats:
        """Return the counters; those of a cache and of generation are 0."""
        return EngineStats(
            num_waiting=len(self._waiting),
            num_steps=self._num_steps,
            num_prompt_tokens=self._num_prompt_tokens,
        )

    def close(self) -> None:
        """Close the encoder; nothing may be called afterwards."""
        self.encoder.close()

    def _choose(self) -> list[str]:
        """Return the requests of the next step: the oldest, and the nearest to it in length."""
        oldest = list(islice(self._waiting.items(), WINDOW))
        if not oldest:
            return []
        if oldest[0][1].image is not None:
            images = [name for name, prompt in oldest if prompt.image is not None]
            return images[: min(self.config.max_num_seqs, MAX_IMAGES)]
        oldest = [item for item in oldest if item[1].image is None]
        length = len(oldest[0][1].ids)
        oldest.sort(key=lambda item: abs(len(item[1].ids) - length))
        count = count_fitting([len(prompt.ids) for _, prompt in oldest], self.config)
        return [request_id for request_id, _ in oldest[:count]]


def count_fitting(lengths: Sequence[int], config: EngineConfig) -> int:
    """Return how many prompts, from the first on, a step computes: at least one.

    At most `max_num_seqs` prompts and `max_num_batched_tokens` tokens.  Prompts are padded to the
    longest, so they must be similar in length: at most MAX_PADDED_RATIO positions for each token.
    """
    num_tokens = longest = 0
    for count, length in enumerate(lengths[: config.max_num_seqs]):
        num_tokens += length
        longest = max(longest, length)
        is_full = num_tokens > config.max_num_batched_tokens
        if count and (is_full or (count + 1) * longest > MAX_PADDED_RATIO * num_tokens):
            return count
    return min(len(lengths), config.max_num_seqs)
