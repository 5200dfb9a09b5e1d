"""POST /api/embed, a vector for each text, and the older /api/embeddings, for a single text."""

import time
from typing import Any

from starlette.requests import Request

from mindspore_serving.core.reading_messages import Embed, Embedded
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import renaming_fields
from mindspore_serving.frontends.chat.prompts import to_prompts
from mindspore_serving.frontends.chat.vectors import (
    check_dimensions,
    find_embedder,
    vectors_of,
    write_vectors,
)
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.ollama.answers import OllamaEmbeddings, Vector
from mindspore_serving.frontends.ollama.fields import EMBED
from mindspore_serving.frontends.ollama.models import served_name
from mindspore_serving.frontends.ollama.requests import EmbeddingsRequest, OllamaEmbedRequest
from mindspore_serving.frontends.request_options import request_options_of


async def embed(state: AppState, http: Request, body: OllamaEmbedRequest) -> OllamaEmbeddings:
    """Return the vectors of `input`, in its order; an empty list without input."""
    began = time.monotonic_ns()
    model = find_embedder(state.models, served_name(state, body.model))
    check_dimensions(body.dimensions, model)
    rows: list[Any] = []
    count = 0
    if body.input:
        prompts = to_prompts(body.input, model.card, "input")
        request = Embed(prompts=prompts, **EMBED.options(body, model.card))
        with renaming_fields("input", EMBED, body):
            embedded = await while_connected(
                http, model.call(request, Embedded, request_options_of(http))
            )
        rows = await write_vectors(vectors_of(embedded, body.dimensions))
        count = sum(embedded.num_prompt_tokens)
    return OllamaEmbeddings(
        model=body.model or model.name,
        embeddings=rows,
        total_duration=time.monotonic_ns() - began,
        prompt_eval_count=count,
    )


async def embed_prompt(state: AppState, http: Request, body: EmbeddingsRequest) -> Vector:
    """Return the vector of `prompt`; an empty one without a prompt."""
    model = find_embedder(state.models, served_name(state, body.model))
    if not body.prompt:
        return Vector([])
    with renaming_fields("prompt", EMBED, body):
        request = Embed(prompts=[body.prompt])
        embedded = await while_connected(
            http, model.call(request, Embedded, request_options_of(http))
        )
    (row,) = await write_vectors(vectors_of(embedded, None))
    return Vector(row)
