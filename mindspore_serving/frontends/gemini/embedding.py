"""POST /v1/models/MODEL:embedContent and :batchEmbedContents."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.reading_messages import Embed, Embedded
from mindspore_serving.errors import InvalidField
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
from mindspore_serving.frontends.gemini.answers import (
    BatchEmbedContentsResponse,
    ContentEmbedding,
    EmbedContentResponse,
)
from mindspore_serving.frontends.gemini.conversation import text_of
from mindspore_serving.frontends.gemini.fields import EMBEDDING
from mindspore_serving.frontends.gemini.requests import (
    BatchEmbedContentsRequest,
    EmbedContentRequest,
)
from mindspore_serving.frontends.request_options import request_options_of

_PROMPTS = {  # by the end of a task type: names of a model's instructions
    "QUERY": ("query",),
    "ANSWERING": ("query",),
    "VERIFICATION": ("query",),
    "DOCUMENT": ("document", "passage"),
}


async def embed(state: AppState, http: Request, body: EmbedContentRequest) -> EmbedContentResponse:
    """Return the vector of a content."""
    (vector,), usage = await _embed(state, http, [body], "")
    return EmbedContentResponse(ContentEmbedding(vector), usage)


async def embed_all(
    state: AppState, http: Request, body: BatchEmbedContentsRequest
) -> BatchEmbedContentsResponse:
    """Return the vectors of several contents, in their order."""
    vectors, usage = await _embed(state, http, body.requests, "requests[{}].")
    return BatchEmbedContentsResponse([*map(ContentEmbedding, vectors)], usage)


async def _embed(
    state: AppState, http: Request, entries: Sequence[EmbedContentRequest], path: str
) -> tuple[list[Any], dict[str, int]]:
    """Return vectors and counts of tokens; `path` is that of an entry, with {} for its index.

    Entries of one size and one instruction go to the model together.
    """
    model = find_embedder(state.models, http.path_params["name"])
    if not entries:
        raise InvalidField("requests", "is [], expected at least one")
    groups: dict[tuple[int | None, str | None], list[int]] = {}
    texts = []
    for index, entry in enumerate(entries):
        texts.append(text_of(path.format(index) + "content", entry.content))
        check_dimensions(entry.outputDimensionality, model)
        key = entry.outputDimensionality, _prompt_name(entry.taskType, model.card)
        groups.setdefault(key, []).append(index)
    to_prompts(texts, model.card, "requests")  # checks their number
    vectors: list[Any] = [None] * len(texts)
    count = 0
    for (size, prompt), indices in groups.items():
        request = Embed(prompts=[texts[index] for index in indices], prompt_name=prompt)
        with renaming_fields("content", EMBEDDING, entries[0]):
            embedded = await while_connected(
                http, model.call(request, Embedded, request_options_of(http))
            )
        written = await write_vectors(vectors_of(embedded, size))
        for index, vector in zip(indices, written, strict=True):
            vectors[index] = vector
        count += sum(embedded.num_prompt_tokens)
    return vectors, {"promptTokenCount": count}


def _prompt_name(task: str | None, card: ModelCard) -> str | None:
    """Return the name of the model's instruction for a type of task; None for its default."""
    names = [name for name, _ in card.prompts]
    suitable = _PROMPTS.get((task or "").upper().rpartition("_")[2], ())
    return next((name for name in suitable if name in names), None)
