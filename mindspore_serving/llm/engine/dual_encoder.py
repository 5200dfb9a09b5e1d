"""Models that embed texts and images into the same space: CLIP and similar ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.pooling import unit_vectors
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.encoder import Encoder
from mindspore_serving.llm.engine.pooler import PromptText
from mindspore_serving.llm.options import check_encoder, check_runtime
from mindspore_serving.llm.runtimes.torch.dual_towers import DualTowers
from mindspore_serving.llm.step import Vectors
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

RUNTIME = "torch"


@dataclass(frozen=True, slots=True)
class DualPooler:
    """Stand-in for a pooler: the towers return a vector for each text and image."""

    modes: tuple[str, ...] = ()
    labels: None = None
    normalizes: bool = True

    def size(self, hidden_size: int) -> int:
        """Return the size of a vector, which is that of the towers."""
        return hidden_size

    def pool(self, states: Vectors, lengths: Sequence[int]) -> Vectors:
        """Return `states`, which are vectors already."""
        return states


class DualEncoder(Encoder):
    """Towers for texts and images.  Used by one thread."""

    runner: DualTowers

    def __init__(self, towers: DualTowers, config: EngineConfig) -> None:
        super().__init__(towers, DualPooler(), config)

    @classmethod
    def open_towers(
        cls, directory: Path, config: EngineConfig, runtime: str, tokenizer: Tokenizer | None
    ) -> "DualEncoder":
        """Load the model in `directory`.  Raises StartError."""
        check_encoder(config)
        check_runtime(config, runtime, (RUNTIME,), " for a model that embeds images")
        if tokenizer is None:
            raise StartError(f"{directory} has no tokenizer.json, which a model for texts needs")
        return cls(DualTowers.open(directory, tokenizer, config), config)

    def check_text(self, text: PromptText) -> None:
        """Raise InvalidInputs for tokens that `check` refuses; an image has none."""
        if text.image is None:
            self.check(text.ids)

    def compute(self, texts: Sequence[PromptText]) -> Vectors:
        """Compute one step of texts or images: float32 [len(texts), embedding_size]."""
        vectors = np.empty((len(texts), self.embedding_size), np.float32)
        rows = [row for row, text in enumerate(texts) if text.image is None]
        if rows:
            vectors[rows] = self.runner.embed_texts([texts[row].ids for row in rows])
        seen = [(row, text.image) for row, text in enumerate(texts) if text.image is not None]
        if seen:
            vectors[[row for row, _ in seen]] = self.runner.embed_images([each for _, each in seen])
        is_raw = np.array([text.normalizes is False for text in texts])
        return np.where(is_raw[:, None], vectors, unit_vectors(vectors))
