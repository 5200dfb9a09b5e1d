"""One `Embed` under way: a request to the engine for each prompt, and one answer for all."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mindspore_serving.core.llm_messages import Embed, Embedded, Event
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.step import Vectors

Command = Callable[[Any], Any]


class EmbedAnswer:
    """Collects the vectors of the prompts."""

    def __init__(self, request_id: str, count: int) -> None:
        self.request_ids = tuple(f"{request_id}/{place}" for place in range(count))
        self._lengths: tuple[int, ...] = ()
        self._vectors: dict[str, Vectors] = {}

    @property
    def is_done(self) -> bool:
        return len(self._vectors) == len(self.request_ids)

    def prepare(self, request: Embed, processor: Processor) -> list[tuple[str, Command]]:
        """What to do with the engine.  Called in the pool.  Raises ServingError."""
        if not request.prompts:
            raise InvalidInputs("there is no prompt to embed, expected at least one")
        prompts = [processor.embed_ids(prompt) for prompt in request.prompts]
        self._lengths = tuple(len(prompt) for prompt in prompts)
        pairs = zip(self.request_ids, prompts, strict=True)
        return [(request_id, _adding(request_id, ids)) for request_id, ids in pairs]

    def take(self, request_id: str, vector: Vectors) -> list[Event]:
        self._vectors[request_id] = vector
        if not self.is_done:
            return []
        rows = [self._vectors[request_id] for request_id in self.request_ids]
        vectors = np.ascontiguousarray(np.stack(rows), "<f4")
        return [Embedded(vectors.tobytes(), vectors.shape[1], self._lengths)]


def _adding(request_id: str, ids: list[int]) -> Command:
    return lambda engine: engine.add_embedding(request_id, ids)
