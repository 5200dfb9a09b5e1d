"""POST /v1/embeddings: a vector for each text and image."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from mindspore_serving.core.reading_messages import Embed, Embedded
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import renaming_fields
from mindspore_serving.frontends.chat.fields import Int, unexpected
from mindspore_serving.frontends.chat.vectors import (
    check_dimensions,
    find_embedder,
    vectors_of,
    write_vectors,
)
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.openai.answers import Embedding, OpenAIEmbeddings
from mindspore_serving.frontends.openai.embedding_inputs import (
    EmbeddingInput,
    EmbeddingMessage,
    read_inputs,
)
from mindspore_serving.frontends.openai.fields import EMBEDDINGS
from mindspore_serving.frontends.request_options import request_options_of

FORMATS = ("float", "base64")


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """Body of /v1/embeddings; other fields are accepted and ignored."""

    input: EmbeddingInput | UnsetType = UNSET
    messages: list[EmbeddingMessage] | None = None
    model: str | None = None
    encoding_format: str | None = None
    dimensions: Int | None = None
    prompt_name: str | None = None
    truncate_prompt_tokens: Any = None


async def answer(state: AppState, http: Request, body: EmbeddingRequest) -> OpenAIEmbeddings:
    """Return the vectors of `input`, in its order, as JSON numbers or as base64.

    `messages` instead have a single text or image, as vLLM takes them.
    """
    model = find_embedder(state.models, body.model)
    EMBEDDINGS.refuse(body)
    if body.encoding_format not in (None, *FORMATS):
        raise unexpected("encoding_format", body.encoding_format, " or ".join(FORMATS))
    check_dimensions(body.dimensions, model)
    inputs = read_inputs(body.input, body.messages, model.card)
    request = Embed(**inputs._asdict(), prompt_name=body.prompt_name)
    with renaming_fields("input" if body.messages is None else "messages", EMBEDDINGS, body):
        embedded = await while_connected(
            http, model.call(request, Embedded, request_options_of(http))
        )
    vectors = vectors_of(embedded, body.dimensions)
    written = await write_vectors(vectors, is_base64=body.encoding_format == "base64")
    rows = [Embedding("embedding", index, vector) for index, vector in enumerate(written)]
    count = sum(embedded.num_prompt_tokens)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return OpenAIEmbeddings("list", rows, model.name, usage)
