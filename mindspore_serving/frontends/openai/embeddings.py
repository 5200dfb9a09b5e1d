"""POST /v1/embeddings: a vector for each text."""

import asyncio
import base64
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mindspore_serving.core.llm_messages import Embed, Embedded
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.disconnect import while_there
from mindspore_serving.frontends.fields import Int, show
from mindspore_serving.frontends.language import LanguageModels, ServedModel
from mindspore_serving.frontends.openai.endpoint import post
from mindspore_serving.frontends.openai.errors import naming
from mindspore_serving.frontends.openai.fields import EMBEDDINGS
from mindspore_serving.frontends.openai.requests import to_prompts
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.terms import terms_of

FORMATS = ("float", "base64")
NUMBERS_AT_ONCE = 1 << 14  # written before others have their turn: about a millisecond

Vectors = npt.NDArray[np.float32]
_encode = msgspec.json.Encoder().encode


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """The body; further fields are accepted and not read."""

    input: str | list[str | Int | list[Int]]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: Int | None = None
    truncate_prompt_tokens: Any = None


def routes(site: Site) -> list[BaseRoute]:
    return [post(site, "/v1/embeddings", EmbeddingRequest, answer, EMBEDDINGS.ignored)]


async def answer(site: Site, http: Request, body: EmbeddingRequest) -> Response:
    """The vectors of `input`, in its order, as JSON numbers or as base64 of float32, little-endian.

    With `dimensions` they are the first so many numbers, scaled to length 1 again, which is
    useful only with models that were trained for it (Matryoshka).
    """
    model = _find(site.models, body.model)
    _check(body, model)
    request = Embed(prompts=to_prompts(body.input, model.card, "input"))
    with naming("input", EMBEDDINGS, body):
        found = await while_there(http, model.call(request, Embedded, terms_of(http)))
    vectors = _cut(np.frombuffer(found.vectors, "<f4").reshape(-1, found.size), body.dimensions)
    rows = await _to_rows(vectors, is_base64=body.encoding_format == "base64")
    count = sum(found.num_prompt_tokens)
    end = {"model": model.name, "usage": {"prompt_tokens": count, "total_tokens": count}}
    whole = b'{"object":"list","data":[%b],%b' % (b",".join(rows), _encode(end)[1:])
    return Response(whole, media_type="application/json")


def _find(models: LanguageModels, name: str | None) -> ServedModel:
    model = models.find(name, embeds=True)
    if not model.card.can_embed:
        text = f"the model {model.name} generates text, and embeds none"
        raise InvalidField("model", text=text)
    if model.adapter:
        text = f"{model.name} is an adapter, which embeds nothing; its model is {model.servable}"
        raise InvalidField("model", text=text)
    return model


def _check(body: EmbeddingRequest, model: ServedModel) -> None:
    EMBEDDINGS.refuse(body)
    if body.encoding_format not in (None, *FORMATS):
        accepted = " or ".join(FORMATS)
        raise InvalidField(
            "encoding_format", f"is {show(body.encoding_format)}, expected {accepted}"
        )
    most, count = model.card.embedding_size, body.dimensions
    if count is not None and not 1 <= count <= most:
        raise InvalidField(
            "dimensions", f"is {count}, expected 1 to {most}, which is what the model has"
        )


def _cut(vectors: Vectors, dimensions: int | None) -> Vectors:
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    kept = vectors[:, :dimensions]
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    unit: Vectors = (kept / np.maximum(lengths, 1e-12)).astype("<f4")
    return unit


async def _to_rows(vectors: Vectors, *, is_base64: bool) -> list[bytes]:
    """The entries of `data`; long answers are written in turns with everything else."""
    rows = []
    at_once = max(1, NUMBERS_AT_ONCE // vectors.shape[1])
    for index, vector in enumerate(vectors):
        if is_base64:
            written = b'"%b"' % base64.b64encode(vector.tobytes())
        else:
            written = _encode(vector.tolist())
        rows.append(b'{"object":"embedding","index":%d,"embedding":%b}' % (index, written))
        if index % at_once == at_once - 1:
            await asyncio.sleep(0)
    return rows
