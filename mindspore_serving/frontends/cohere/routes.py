"""The routes of Cohere's protocol for ranking, and of Jina and vLLM."""

from functools import partial

from mindspore_serving.frontends.cohere.rerank import (
    FIELDS,
    V1,
    V2,
    Error,
    Ranking,
    RerankRequest,
    rerank,
    to_response,
)
from mindspore_serving.frontends.operation import JSON, Body
from mindspore_serving.frontends.routes import LANGUAGE, HttpProtocol, HttpRoute

PROTOCOL = HttpProtocol(
    "cohere",
    to_response,
    title="Cohere",
    about="Cohere's protocol for ranking, with the fields of Jina's and vLLM's, for rerankers.",
    errors={JSON: Error},
)
_rank = partial(
    HttpRoute,
    "POST",
    protocol=PROTOCOL,
    needs=LANGUAGE,
    answers={JSON: Ranking},
    body=Body(RerankRequest, {RerankRequest: FIELDS}),
    decodes=True,
    handler=rerank,
)

ROUTES = (
    _rank(V2, summary="Rank documents by a query"),
    _rank(V1, summary="The same, with the documents' texts"),
)
