"""The vectors of an embedding: the model that makes them, and their numbers as JSON.  Knows no
protocol's answers.
"""

import asyncio
import base64
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mindspore_serving.core.reading_messages import Embedded
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import unexpected
from mindspore_serving.frontends.chat.models import LanguageModels, ServedModel

NUMBERS_AT_ONCE = 1 << 14  # written before others have their turn: about a millisecond

Vectors = npt.NDArray[np.float32]
_encode = msgspec.json.Encoder().encode


def find_embedder(models: LanguageModels, name: str | None) -> ServedModel:
    """The model `name`.  Raises NotFound, or InvalidField if it embeds no texts."""
    model = models.find(name, purpose="embed")
    if not model.card.can_embed:
        what = "scores texts" if model.card.can_score else "generates text"
        text = f"the model {model.name} {what}, and embeds none without embeddings=true"
        raise InvalidField("model", text=text)
    if model.adapter:
        text = f"{model.name} is an adapter, which embeds nothing; its model is {model.servable}"
        raise InvalidField("model", text=text)
    return model


def check_dimensions(count: int | None, model: ServedModel) -> None:
    """Raises InvalidField if the model's vectors cannot be cut to so many numbers."""
    card = model.card
    most, sizes = card.embedding_size, card.dimensions
    if count is None or count == most:
        return
    if sizes and not card.any_dimensions:
        if count not in sizes:
            accepted = ", ".join(map(str, sizes))
            raise unexpected("dimensions", count, f"one of {accepted}")
    elif not 1 <= count <= most:
        raise unexpected("dimensions", count, f"1 to {most}, which is what the model has")
    elif not card.any_dimensions:
        raise InvalidField(
            "dimensions",
            f"is {count}, but the model's config.json names no matryoshka_dimensions: leave it out "
            f"for all {most}, or serve the model with the option matryoshka=true",
        )


def vectors_of(found: Embedded, dimensions: int | None, *, normalizes: bool = True) -> Vectors:
    """[number of prompts, size]; of `dimensions` the first so many, scaled to length 1 again if
    `normalizes`.
    """
    vectors = np.frombuffer(found.vectors, "<f4").reshape(-1, found.size)
    if dimensions is None or dimensions == found.size:
        return vectors
    kept = vectors[:, :dimensions]
    if not normalizes:
        return kept
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    unit: Vectors = (kept / np.maximum(lengths, 1e-12)).astype("<f4")
    return unit


async def write_vectors(vectors: Vectors, *, is_base64: bool = False) -> list[Any]:
    """Each as a `msgspec.Raw` of numbers, or of base64 of float32, little-endian.  Many are written
    in turns with everything else.
    """
    written = []
    at_once = max(1, NUMBERS_AT_ONCE // vectors.shape[1])
    for index, vector in enumerate(vectors):
        if is_base64:
            written.append(msgspec.Raw(b'"%b"' % base64.b64encode(vector.tobytes())))
        else:
            written.append(msgspec.Raw(_encode(vector.tolist())))
        if index % at_once == at_once - 1:
            await asyncio.sleep(0)
    return written
