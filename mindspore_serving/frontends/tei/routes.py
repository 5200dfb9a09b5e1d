"""The routes: which of them answers a body, and what the model is."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Scope

from mindspore_serving import __version__
from mindspore_serving.frontends.chat.endpoint import Endpoints, name_ignored
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.chat.unknown_fields import KnownFields
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.tei.answering import (
    compare,
    embed,
    first_reader,
    predict,
    rerank,
    tokenize,
)
from mindspore_serving.frontends.tei.errors import OtherModel, to_response
from mindspore_serving.frontends.tei.requests import (
    EmbedRequest,
    Info,
    PredictRequest,
    RerankRequest,
    SimilarityRequest,
    TokenizeRequest,
)
from mindspore_serving.frontends.tgi.aliases import DecliningRoute, Forwarded, other_path
from mindspore_serving.frontends.tgi.requests import decode, read_json

RERANK, TOKENIZE = "/rerank", "/tokenize"
COHERE = "/v1/rerank"
THREADS = 2  # of a worker, which look at texts

Body = TypeVar("Body", bound=msgspec.Struct)
Work = Callable[[Site, Request, Any], Awaitable[Response]]
_ENDPOINTS = Endpoints(to_response)


class _Shape(msgspec.Struct):
    """The fields by which bodies for the same path differ."""

    query: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    model: str | None = None


_SHAPE = msgspec.json.Decoder(_Shape)


def routes(site: Site) -> list[BaseRoute]:
    """Those of its own, and /rerank."""
    ranking = Decoded(RERANK, RerankRequest, rerank)

    async def rank(http: Request) -> Response:
        body = await read_json(http, site)
        if decode(body, _SHAPE).documents:
            return Forwarded(body, COHERE)
        return await ranking.answer(site, http, body)

    return [
        *(
            _ENDPOINTS.post_raw(path, partial(_read_and_answer, site, one))
            for path, one in OWN.items()
        ),
        _ENDPOINTS.post_raw("/embed_sparse", _refuse_sparse),
        _ENDPOINTS.post_raw(RERANK, rank),
    ]


def shared_routes(site: Site) -> list[BaseRoute]:
    """Those that TGI has as well."""
    root = {name: Decoded("/", one.kind, one.work) for name, one in ROOT.items()}
    tokens = Decoded(TOKENIZE, TokenizeRequest, tokenize)

    async def answer_root(http: Request) -> Response:
        body = await read_json(http, site)
        return await root[_root_kind(site, decode(body, _SHAPE))].answer(site, http, body)

    async def answer_tokens(http: Request) -> Response:
        body = await read_json(http, site)
        path = other_path(body, TOKENIZE, TOKENIZE)
        return Forwarded(body, path) if path else await tokens.answer(site, http, body)

    async def info(_: Request) -> Response:
        return to_json(_info(site))

    return [
        _ENDPOINTS.post_raw("/", answer_root),
        DecliningRoute(TOKENIZE, _ENDPOINTS.guarded(answer_tokens), methods=["POST"]),
        _ENDPOINTS.get("/info", info),
    ]


def generates_none(site: Site) -> Callable[[Scope], bool]:
    """Whether there are models, none of which generates."""

    def check(_: Scope) -> bool:
        models = site.models.all()
        return bool(models) and not any(model.can("generate") for model in models)

    return check


class Decoded(Generic[Body]):
    """Answers bodies that are a `kind` with what `work` gives."""

    def __init__(self, path: str, kind: type[Body], work: Work) -> None:
        self.kind = kind
        self.work = work
        self._fields = KnownFields(path, kind)
        self._decoder = msgspec.json.Decoder(kind)

    async def answer(self, site: Site, http: Request, body: bytes) -> Response:
        unknown = self._fields.find_unknown(body)
        response = await self.work(site, http, decode(body, self._decoder))
        name_ignored(response, unknown)
        return response


OWN = {
    "/embed": Decoded[Any]("/embed", EmbedRequest, embed),
    "/predict": Decoded[Any]("/predict", PredictRequest, predict),
    "/similarity": Decoded[Any]("/similarity", SimilarityRequest, compare),
}
ROOT = {
    "embed": OWN["/embed"],
    "classify": OWN["/predict"],
    "rank": Decoded[Any](RERANK, RerankRequest, rerank),
}


def _root_kind(site: Site, shape: _Shape) -> str:
    """What a body for the path / asks for: by its fields, and by the model."""
    if shape.query:
        return "rank"
    models = site.models.all()
    named = [model for model in models if model.name == shape.model] or models
    return "embed" if any(model.can("embed") for model in named) else "classify"


async def _read_and_answer(site: Site, decoded: Decoded[Any], http: Request) -> Response:
    return await decoded.answer(site, http, await read_json(http, site))


async def _refuse_sparse(_: Request) -> Response:
    raise OtherModel("no model gives sparse vectors: take /embed")


def _kind(model: ServedModel) -> str:
    if model.can("embed"):
        return "embed"
    return "rank" if len(model.card.labels) == 1 else "classify"


def _info(site: Site) -> Info:
    model = first_reader(site)
    card = model.card
    kind = {"embed": "embedding", "classify": "classifier", "rank": "reranker"}[_kind(model)]
    labels = {str(index): label for index, label in enumerate(card.labels)}
    back = {label: index for index, label in enumerate(card.labels)}
    described: dict[str, object] = {"id2label": labels, "label2id": back}
    return Info(
        model_id=model.name,
        model_dtype=card.dtype,
        model_type={kind: {"pooling": card.pooling} if kind == "embedding" else described},
        max_concurrent_requests=card.max_num_waiting or card.max_num_seqs,
        max_input_length=card.max_model_len,
        max_batch_tokens=card.max_num_batched_tokens,
        max_batch_requests=card.max_num_seqs,
        max_client_batch_size=site.models.limits.max_prompts,
        tokenization_workers=THREADS,
        version=__version__,
    )
