"""Routes of Text Embeddings Inference.

Paths that TGI has as well are TEI's where no model generates.
"""

from functools import partial

from starlette.types import Scope

from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.cohere.rerank import CohereError, Ranking
from mindspore_serving.frontends.cohere.rerank import CohereRerankRequest as CohereRequest
from mindspore_serving.frontends.health import has_models
from mindspore_serving.frontends.operation import JSON, STRING, TEXT, Body
from mindspore_serving.frontends.routes import LANGUAGE, HttpProtocol, HttpRoute
from mindspore_serving.frontends.tei import bodies, requests
from mindspore_serving.frontends.tei.answering import compare, embed, predict
from mindspore_serving.frontends.tei.bodies import BodyRoute
from mindspore_serving.frontends.tei.errors import to_response
from mindspore_serving.frontends.tgi.aliases import is_not_declined
from mindspore_serving.frontends.tgi.answers import TgiErrorBody

PROTOCOL = HttpProtocol(
    "tei",
    to_response,
    title="TEI",
    about="Text Embeddings Inference: the routes of Hugging Face's server, for models that embed, "
    "rank or classify. Where no model generates, /, /info and /tokenize answer in its form too.",
    errors={JSON: TgiErrorBody, TEXT: STRING},
)


def _has_models(state: AppState, _: Scope) -> bool:
    return has_models(state.control)


def _is_shared(state: AppState, scope: Scope) -> bool:
    return bodies.has_no_generator(state) and is_not_declined(scope)


_post = partial(HttpRoute, "POST", protocol=PROTOCOL, needs=LANGUAGE, applies=_has_models)
_shared = partial(HttpRoute, protocol=PROTOCOL, applies=_is_shared)  # documented by TGI's routes

ROUTES = (
    _shared("POST", "/", bodies.answer_root),
    _shared("POST", bodies.TOKENIZE, bodies.answer_tokens),
    _shared("GET", "/info", bodies.show_info),
    _post(
        "/embed",
        BodyRoute("/embed", requests.TeiEmbedRequest, embed),
        "Embed texts",
        {JSON: list[list[float]]},
        body=Body(requests.TeiEmbedRequest),
    ),
    _post("/embed_sparse", bodies.refuse_sparse, "Always 424: sparse vectors are not supported"),
    _post(
        "/predict",
        BodyRoute("/predict", requests.PredictRequest, predict),
        "Classify texts or pairs",
        {JSON: (list[requests.TeiPrediction], list[list[requests.TeiPrediction]])},
        body=Body(requests.PredictRequest),
    ),
    _post(
        "/similarity",
        BodyRoute("/similarity", requests.SimilarityRequest, compare),
        "Compute the similarity of a sentence to others",
        {JSON: list[float]},
        body=Body(requests.SimilarityRequest),
    ),
    _post(
        bodies.RERANK,
        bodies.answer_rank,
        "Rank texts by a query; documents are ranked in Cohere's form",
        {JSON: (list[requests.TeiRank], Ranking)},
        body=Body((requests.TeiRerankRequest, CohereRequest)),
        other_answers={"4XX": {JSON: (TgiErrorBody, CohereError), TEXT: STRING}},
    ),
)
