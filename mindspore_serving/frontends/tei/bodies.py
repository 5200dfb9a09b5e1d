"""Routes whose answer depends on the body or on the kind of model."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving import __version__
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.chat.unknown_fields import KnownFields, name_ignored
from mindspore_serving.frontends.cohere.rerank import V1 as COHERE
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.tei.answering import (
    default_model,
    embed,
    predict,
    rerank,
    tokenize,
)
from mindspore_serving.frontends.tei.errors import UnsupportedModel
from mindspore_serving.frontends.tei.requests import (
    PredictRequest,
    TeiEmbedRequest,
    TeiInfo,
    TeiRerankRequest,
    TeiTokenizeRequest,
)
from mindspore_serving.frontends.tgi.aliases import Forwarded, other_path
from mindspore_serving.frontends.tgi.requests import decode, read_json

RERANK, TOKENIZE = "/rerank", "/tokenize"
THREADS = 2  # threads of a worker that tokenize texts

Work = Callable[[AppState, Request, Any], Awaitable[Response]]


class _Shape(msgspec.Struct):
    """Fields by which bodies of the same path differ."""

    query: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    model: str | None = None


_SHAPE = msgspec.json.Decoder(_Shape)


def has_no_generator(state: AppState) -> bool:
    """Return whether there are models, none of which generates."""
    models = state.models.all()
    return bool(models) and not any(model.can("generate") for model in models)


class BodyRoute:
    """Decodes bodies to a `kind` and answers them by `work`."""

    def __init__(self, path: str, kind: type[msgspec.Struct], work: Work) -> None:
        self._work = work
        self._fields = KnownFields(path, kind)
        self._decoder = msgspec.json.Decoder(kind)

    async def __call__(self, state: AppState, http: Request) -> Response:
        return await self.answer(state, http, await read_json(http, state))

    async def answer(self, state: AppState, http: Request, body: bytes) -> Response:
        """Answer a body that was read."""
        unknown = self._fields.find_unknown(body)
        response = await self._work(state, http, decode(body, self._decoder))
        name_ignored(response, unknown)
        return response


_RANK = BodyRoute(RERANK, TeiRerankRequest, rerank)
_TOKENS = BodyRoute(TOKENIZE, TeiTokenizeRequest, tokenize)
_AT_ROOT = {
    "embed": BodyRoute("/", TeiEmbedRequest, embed),
    "classify": BodyRoute("/", PredictRequest, predict),
    "rank": BodyRoute("/", TeiRerankRequest, rerank),
}


async def answer_rank(state: AppState, http: Request) -> Response:
    """Answer POST /rerank, by Cohere's protocol if the body has its fields."""
    body = await read_json(http, state)
    if decode(body, _SHAPE).documents:
        return Forwarded(body, COHERE)
    return await _RANK.answer(state, http, body)


async def answer_root(state: AppState, http: Request) -> Response:
    """Answer POST /."""
    body = await read_json(http, state)
    return await _AT_ROOT[_root_kind(state, decode(body, _SHAPE))].answer(state, http, body)


async def answer_tokens(state: AppState, http: Request) -> Response:
    """Answer POST /tokenize."""
    body = await read_json(http, state)
    path = other_path(body, TOKENIZE, TOKENIZE)
    return Forwarded(body, path) if path else await _TOKENS.answer(state, http, body)


async def show_info(state: AppState, _: Request) -> Response:
    """Return the model and the limits."""
    return to_json(_info(state))


def _root_kind(state: AppState, shape: _Shape) -> str:
    """Return what a body for the path / requests, judged by its fields and by the model."""
    if shape.query:
        return "rank"
    models = state.models.all()
    named = [model for model in models if model.name == shape.model] or models
    return "embed" if any(model.can("embed") for model in named) else "classify"


async def refuse_sparse(_: AppState, __: Request) -> Response:
    """Refuse POST /embed_sparse."""
    raise UnsupportedModel("sparse vectors are not supported: use /embed")


def _kind(model: ServedModel) -> str:
    if model.can("embed"):
        return "embed"
    return "rank" if len(model.card.labels) == 1 else "classify"


def _info(state: AppState) -> TeiInfo:
    model = default_model(state)
    card = model.card
    kind = {"embed": "embedding", "classify": "classifier", "rank": "reranker"}[_kind(model)]
    labels = {str(index): label for index, label in enumerate(card.labels)}
    ids = {label: index for index, label in enumerate(card.labels)}
    label_maps: dict[str, object] = {"id2label": labels, "label2id": ids}
    return TeiInfo(
        model_id=model.name,
        model_dtype=card.dtype,
        model_type={kind: {"pooling": card.pooling} if kind == "embedding" else label_maps},
        max_concurrent_requests=card.max_num_waiting or card.max_num_seqs,
        max_input_length=card.max_model_len,
        max_batch_tokens=card.max_num_batched_tokens,
        max_batch_requests=card.max_num_seqs,
        max_client_batch_size=state.models.limits.max_prompts,
        tokenization_workers=THREADS,
        version=__version__,
    )
