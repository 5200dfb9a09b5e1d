"""POST /api/embed: a vector for each text; and /api/embeddings, the older form for one."""

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.reading_messages import Embed, Embedded
from mindspore_serving.frontends.chat.errors import naming
from mindspore_serving.frontends.chat.prompts import to_prompts
from mindspore_serving.frontends.chat.vectors import (
    check_dimensions,
    find_embedder,
    vectors_of,
    write_vectors,
)
from mindspore_serving.frontends.disconnect import while_there
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.ollama.fields import EMBED, naming_ignored
from mindspore_serving.frontends.ollama.models import without_tag
from mindspore_serving.frontends.ollama.requests import EmbeddingsRequest, EmbedRequest
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.terms import terms_of


@naming_ignored
async def embed(site: Site, http: Request, body: EmbedRequest) -> Response:
    """The vectors of `input`, in its order; none of none."""
    began = time.monotonic_ns()
    model = find_embedder(site.models, without_tag(body.model))
    check_dimensions(body.dimensions, model)
    rows, count = [], 0
    if body.input:
        prompts = to_prompts(body.input, model.card, "input")
        request = Embed(prompts=prompts, **EMBED.options(body, model.card))
        with naming("input", EMBED, body):
            found = await while_there(http, model.call(request, Embedded, terms_of(http)))
        rows = await write_vectors(vectors_of(found, body.dimensions))
        count = sum(found.num_prompt_tokens)
    whole = {
        "model": body.model or model.name,
        "embeddings": [msgspec.Raw(row) for row in rows],
        "total_duration": time.monotonic_ns() - began,
        "load_duration": 0,
        "prompt_eval_count": count,
    }
    return to_json(whole)


@naming_ignored
async def embed_one(site: Site, http: Request, body: EmbeddingsRequest) -> Response:
    """The vector of `prompt`; an empty one of none."""
    model = find_embedder(site.models, without_tag(body.model))
    vector = msgspec.Raw(b"[]")
    if body.prompt:
        with naming("prompt", EMBED, body):
            request = Embed(prompts=[body.prompt])
            found = await while_there(http, model.call(request, Embedded, terms_of(http)))
        (row,) = await write_vectors(vectors_of(found, None))
        vector = msgspec.Raw(row)
    return to_json({"embedding": vector})
