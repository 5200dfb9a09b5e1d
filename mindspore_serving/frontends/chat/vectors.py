"""Vectors of embeddings: finds the model and writes the vectors as JSON.

Knows no protocol's answers.
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

NUMBERS_AT_ONCE = 1 << 14  # encoded between two turns of the event loop: about a millisecond

Vectors = npt.NDArray[np.float32]
_encode = msgspec.json.Encoder().encode


def find_embedder(models: LanguageModels, name: str | None) -> ServedModel:
    """Return the model `name`.

    Raises NotFound, or InvalidField if it does not embed texts.
    """
    model = models.find(name, purpose="embed")
    if not model.card.can_embed:
        what = "scores texts" if model.card.can_score else "generates text"
        text = f"model {model.name!r} {what}; to embed, serve it with --llm-option embeddings=true"
        raise InvalidField("model", text=text)
    if model.adapter:
        text = f"{model.name} is a LoRA adapter and cannot embed; use its model {model.servable}"
        raise InvalidField("model", text=text)
    return model


def check_dimensions(count: int | None, model: ServedModel) -> None:
    """Check that the model's vectors can be truncated to `count` numbers.

    Raises InvalidField.
    """
    card = model.card
    size, sizes = card.embedding_size, card.dimensions
    if count is None or count == size:
        return
    if sizes and not card.any_dimensions:
        if count not in sizes:
            accepted = ", ".join(map(str, sizes))
            raise unexpected("dimensions", count, f"one of {accepted}")
    elif not 1 <= count <= size:
        raise unexpected("dimensions", count, f"1 to {size}, the range of the model")
    elif not card.any_dimensions:
        raise InvalidField(
            "dimensions",
            f"is {count}, but the model's config.json names no matryoshka_dimensions: leave it out "
            f"for all {size}, or serve the model with the option matryoshka=true",
        )


def vectors_of(embedded: Embedded, dimensions: int | None, *, normalizes: bool = True) -> Vectors:
    """Return the vectors, of shape [prompts, size].

    With `dimensions` only the first numbers are kept; `normalizes` scales them back to length 1.
    """
    vectors = np.frombuffer(embedded.vectors, "<f4").reshape(-1, embedded.size)
    if dimensions is None or dimensions == embedded.size:
        return vectors
    kept = vectors[:, :dimensions]
    if not normalizes:
        return kept
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    unit: Vectors = (kept / np.maximum(lengths, 1e-12)).astype("<f4")
    return unit


async def write_vectors(vectors: Vectors, *, is_base64: bool = False) -> list[Any]:
    """Return each vector as a `msgspec.Raw`: numbers, or base64 of little-endian float32.

    Yields to the event loop after every `NUMBERS_AT_ONCE` numbers.
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
