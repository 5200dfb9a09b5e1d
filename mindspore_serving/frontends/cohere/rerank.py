"""POST /v2/rerank and /v1/rerank: rank documents by a query.

A body of this kind for /rerank, which is also TEI's path, is answered by /v1/rerank.
"""

import secrets
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.reading_messages import Score
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import to_failure
from mindspore_serving.frontends.chat.fields import Fields, Int, unexpected
from mindspore_serving.frontends.chat.scores import best_first, find_scorer, score
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.operation import JSON, Body
from mindspore_serving.frontends.routes import LANGUAGE, HttpProtocol, HttpRoute

V2, V1 = "/v2/rerank", "/v1/rerank"
FIELDS = Fields("openai", ignored=("max_tokens_per_doc", "max_chunks_per_doc", "priority", "user"))


def to_response(error: Exception) -> Response:
    """Return the answer to a request that ended with `error`: a message and the HTTP status."""
    failure = to_failure(error)
    return to_json(CohereError(failure.text), failure.status, failure.retry_after)


class CohereError(msgspec.Struct):
    """Body of an error."""

    message: str


class Document(msgspec.Struct):
    """A document; other fields are ignored."""

    text: str


class CohereRerankRequest(msgspec.Struct, kw_only=True):
    """Body of a request.

    `truncation` truncates documents that are too long.  `instruction` tells a model that reads
    instructions what to rank by.
    """

    query: str
    documents: list[str | Document]
    model: str | None = None
    top_n: Int | None = None
    return_documents: bool | None = None
    truncation: bool | None = None
    instruction: str | None = None
    rank_fields: list[str] | None = None


class CohereRank(msgspec.Struct, omit_defaults=True):
    """Score of a document."""

    index: int
    relevance_score: float
    document: Document | None = None


class Ranking(msgspec.Struct):
    """Answer of both routes.

    Cohere's clients read `id`, `results` and `meta`, those of Jina and vLLM `model`, `results` and
    `usage`.
    """

    id: str
    model: str
    results: list[CohereRank]
    usage: dict[str, int]
    meta: dict[str, Any]


async def rerank(state: AppState, http: Request, body: CohereRerankRequest) -> Response:
    """Return the `top_n` best documents, best first.

    On /v1/rerank, the path of Jina and vLLM, their texts are included unless the body says
    otherwise.
    """
    model = find_scorer(state.models, body.model)
    texts = to_texts(body)
    request = Score(
        texts=texts,
        queries=[body.query],
        instruction=body.instruction or "",
        truncate="" if body.truncation is False else "right",
    )
    scores = await score(http, model, request)
    has_texts = body.return_documents
    if has_texts is None:
        has_texts = http.url.path != V2
    values = scores.probabilities[:, 0].tolist()
    order = best_first(values)[: body.top_n]
    results = [CohereRank(i, values[i], Document(texts[i]) if has_texts else None) for i in order]
    usage = {"prompt_tokens": scores.num_tokens, "total_tokens": scores.num_tokens}
    version = "2" if http.url.path == V2 else "1"
    meta = {"api_version": {"version": version}, "tokens": {"input_tokens": scores.num_tokens}}
    name = f"rerank-{secrets.token_hex(16)}"
    return to_json(Ranking(name, model.name, results, usage, meta))


def to_texts(body: CohereRerankRequest) -> list[str]:
    """Return the texts of the documents.

    Raises InvalidField.
    """
    if not body.query.strip():
        raise InvalidField("query", "is empty, expected a text")
    if not body.documents:
        raise InvalidField("documents", "is empty, expected at least one")
    if body.top_n is not None and body.top_n < 1:
        raise unexpected("top_n", body.top_n, "an integer over 0")
    if body.rank_fields not in (None, ["text"]):
        raise unexpected(
            "rank_fields", body.rank_fields, "text alone, the only field that is ranked"
        )
    return [entry if isinstance(entry, str) else entry.text for entry in body.documents]


PROTOCOL = HttpProtocol(
    "cohere",
    to_response,
    title="Cohere",
    about="Cohere's protocol for ranking, with the fields of Jina's and vLLM's, for rerankers.",
    errors={JSON: CohereError},
)
_rank = partial(
    HttpRoute,
    "POST",
    protocol=PROTOCOL,
    needs=LANGUAGE,
    answers={JSON: Ranking},
    body=Body(CohereRerankRequest, {CohereRerankRequest: FIELDS}),
    decodes=True,
    handler=rerank,
)

ROUTES = (
    _rank(V2, summary="Rank documents by a query"),
    _rank(V1, summary="Rank documents by a query and return their texts"),
)
