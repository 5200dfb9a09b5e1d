"""What each route answers to a body that was read."""

from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import Tokenize, Tokenized
from mindspore_serving.core.reading_messages import Embed, Embedded, Score
from mindspore_serving.errors import InvalidField, NotFound
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import Purpose, ServedModel
from mindspore_serving.frontends.chat.prompts import to_prompts
from mindspore_serving.frontends.chat.scores import Numbers, best_first, score
from mindspore_serving.frontends.chat.vectors import check_dimensions, vectors_of, write_vectors
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.tei.errors import OtherModel
from mindspore_serving.frontends.tei.requests import (
    PredictRequest,
    SimilarityRequest,
    TeiEmbedRequest,
    TeiPrediction,
    TeiRank,
    TeiRerankRequest,
    TeiToken,
    TeiTokenizeRequest,
    to_rows,
)

WANTED = {
    "embed": "embeds texts",
    "score": "classifies texts",
    "rank": "ranks texts, with one label",
}


async def embed(state: AppState, http: Request, body: TeiEmbedRequest) -> Response:
    """A vector for each text, of length 1 unless `normalize` is false."""
    model = _find(state, body.model, "embed")
    check_dimensions(body.dimensions, model)
    normalizes = body.normalize is not False
    request = Embed(
        prompts=to_prompts(body.inputs, model.card, "inputs"),
        prompt_name=body.prompt_name,
        truncate=body.side,
        scale="unit" if normalizes else "none",
    )
    found = await while_connected(http, model.call(request, Embedded, request_options_of(http)))
    rows = await write_vectors(vectors_of(found, body.dimensions, normalizes=normalizes))
    return to_json(rows)


async def predict(state: AppState, http: Request, body: PredictRequest) -> Response:
    """The labels of each text or pair, the likeliest first."""
    model = _find_classifier(state, body.model)
    rows, is_single = to_rows(body.inputs)
    if len({len(row) for row in rows}) > 1:
        raise InvalidField("inputs", "has texts and pairs, expected only one kind in a request")
    queries = [row[0] for row in rows if len(row) == 2]
    request = Score(texts=[row[-1] for row in rows], queries=queries, truncate=body.side)
    found = await score(http, model, request)
    labels, more = model.card.labels, body.parameters
    function = more.function_to_apply if more else None
    is_raw = body.raw_scores or function == "none"
    values = found.logits if is_raw else _probabilities(found.logits, function)
    most = more.top_k if more else None
    answers = [
        [TeiPrediction(float(row[i]), labels[i]) for i in best_first(row)[:most]] for row in values
    ]
    return to_json(answers[0] if is_single and more is None else answers)


async def rerank(state: AppState, http: Request, body: TeiRerankRequest) -> Response:
    """All texts, those first that fit the query best."""
    model = _find(state, body.model, "rank")
    if not body.texts:
        raise InvalidField("texts", text="`texts` cannot be empty")
    request = Score(texts=body.texts, queries=[body.query], truncate=body.side)
    found = await score(http, model, request)
    values = (found.logits if body.raw_scores else _probabilities(found.logits))[:, 0].tolist()
    texts = body.texts if body.return_text else [None] * len(values)
    return to_json([TeiRank(i, values[i], texts[i]) for i in best_first(values)])


async def compare(state: AppState, http: Request, body: SimilarityRequest) -> Response:
    """The cosine between the source sentence and each of the others."""
    more = body.parameters
    model = _find(state, body.model or (more.model if more else None), "embed")
    given = body.inputs
    if not given.sentences:
        raise InvalidField("sentences", text="`inputs.sentences` cannot be empty")
    request = Embed(
        prompts=[given.source_sentence, *given.sentences],
        prompt_name=more.prompt_name if more else None,
        truncate=more.side if more else "",
        scale="unit",
    )
    found = await while_connected(http, model.call(request, Embedded, request_options_of(http)))
    source, *others = vectors_of(found, None)
    return to_json((np.stack(others) @ source).tolist())


async def tokenize(state: AppState, http: Request, body: TeiTokenizeRequest) -> Response:
    """The tokens of each text."""
    model = state.models.find(body.model) if body.model else first_reader(state)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    most = state.models.limits.max_prompts
    if len(texts) > most:
        raise InvalidField("inputs", f"has {len(texts)} texts, expected at most {most}")
    found = []
    for text in texts:
        request = Tokenize(prompt=text, add_special=body.add_special_tokens)
        tokens = await while_connected(
            http, model.call(request, Tokenized, request_options_of(http))
        )
        pairs = zip(tokens.tokens, tokens.offsets, strict=True)
        found.append([_token(tokens.text, *pair) for pair in pairs])
    return to_json(found)


def _token(text: str, token: Any, place: tuple[int, int]) -> TeiToken:
    start, stop = place
    if token.is_special and start == stop:
        return TeiToken(token.id, token.text, special=True, start=None, stop=None)
    return TeiToken(token.id, text[start:stop], token.is_special, start, stop)


def first_reader(state: AppState) -> ServedModel:
    """The one that is meant if a request names none: one that embeds, if there is one."""
    models = [model for model in state.models.all() if not model.can("generate")]
    return min(models, key=lambda model: not model.can("embed"))


def _find_classifier(state: AppState, name: str | None) -> ServedModel:
    """Without a name one of several labels, if there is one: those of one label rank."""
    if name is None:
        found = [one for one in state.models.all() if one.can("score") and not one.can("rank")]
        if found:
            return found[0]
    return _find(state, name, "score")


def _find(state: AppState, name: str | None, purpose: Purpose) -> ServedModel:
    """Raises OtherModel if the model, or each, is of another kind."""
    try:
        model = state.models.find(name, purpose=purpose)
    except NotFound as error:
        text = str(error) if name else f"there is no model that {WANTED[purpose]}"
        raise OtherModel(text) from None
    if not model.can(purpose):
        raise OtherModel(f"the model {model.name} is none that {WANTED[purpose]}")
    return model


def _probabilities(logits: Numbers, function: str | None = None) -> Numbers:
    """What TEI makes of logits, unless a request names a function: they sum to 1 over several
    labels; of one it is the sigmoid.
    """
    if (function or ("sigmoid" if logits.shape[-1] == 1 else "softmax")) == "sigmoid":
        found: Numbers = 1 / (1 + np.exp(-logits))
        return found
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    shares: Numbers = powers / powers.sum(-1, keepdims=True)
    return shares
