"""Answers of the routes to decoded bodies."""

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
from mindspore_serving.frontends.tei.errors import UnsupportedModel
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

_CAPABILITIES = {
    "embed": "embeds texts (a language model does with --llm-option embeddings=true)",
    "score": "classifies texts",
    "rank": "ranks texts (serve a classifier with one label)",
}


async def embed(state: AppState, http: Request, body: TeiEmbedRequest) -> Response:
    """Return a vector for each text, of length 1 unless `normalize` is false."""
    model = _find(state, body.model, "embed")
    check_dimensions(body.dimensions, model)
    normalizes = body.normalize is not False
    request = Embed(
        prompts=to_prompts(body.inputs, model.card, "inputs"),
        prompt_name=body.prompt_name,
        truncate=body.side,
        scale="unit" if normalizes else "none",
    )
    embedded = await while_connected(http, model.call(request, Embedded, request_options_of(http)))
    rows = await write_vectors(vectors_of(embedded, body.dimensions, normalizes=normalizes))
    return to_json(rows)


async def predict(state: AppState, http: Request, body: PredictRequest) -> Response:
    """Return the labels of each text or pair, likeliest first."""
    model = _find_classifier(state, body.model)
    rows, is_single = to_rows(body.inputs)
    if len({len(row) for row in rows}) > 1:
        raise InvalidField("inputs", "has texts and pairs, expected only one kind in a request")
    queries = [row[0] for row in rows if len(row) == 2]
    request = Score(texts=[row[-1] for row in rows], queries=queries, truncate=body.side)
    scores = await score(http, model, request)
    labels, parameters = model.card.labels, body.parameters
    function = parameters.function_to_apply if parameters else None
    is_raw = body.raw_scores or function == "none"
    values = scores.logits if is_raw else _probabilities(scores.logits, function)
    top_k = parameters.top_k if parameters else None
    answers = [
        [TeiPrediction(float(row[i]), labels[i]) for i in best_first(row)[:top_k]] for row in values
    ]
    return to_json(answers[0] if is_single and parameters is None else answers)


async def rerank(state: AppState, http: Request, body: TeiRerankRequest) -> Response:
    """Return all texts, those that fit the query best first."""
    model = _find(state, body.model, "rank")
    if not body.texts:
        raise InvalidField("texts", text="`texts` cannot be empty")
    request = Score(texts=body.texts, queries=[body.query], truncate=body.side)
    scores = await score(http, model, request)
    values = (scores.logits if body.raw_scores else _probabilities(scores.logits))[:, 0].tolist()
    texts = body.texts if body.return_text else [None] * len(values)
    return to_json([TeiRank(i, values[i], texts[i]) for i in best_first(values)])


async def compare(state: AppState, http: Request, body: SimilarityRequest) -> Response:
    """Return the cosine similarity of the source sentence to each of the sentences."""
    parameters = body.parameters
    model = _find(state, body.model or (parameters.model if parameters else None), "embed")
    sentences = body.inputs
    if not sentences.sentences:
        raise InvalidField("sentences", text="`inputs.sentences` cannot be empty")
    request = Embed(
        prompts=[sentences.source_sentence, *sentences.sentences],
        prompt_name=parameters.prompt_name if parameters else None,
        truncate=parameters.side if parameters else "",
        scale="unit",
    )
    embedded = await while_connected(http, model.call(request, Embedded, request_options_of(http)))
    source, *targets = vectors_of(embedded, None)
    return to_json((np.stack(targets) @ source).tolist())


async def tokenize(state: AppState, http: Request, body: TeiTokenizeRequest) -> Response:
    """Return the tokens of each text."""
    model = state.models.find(body.model) if body.model else default_model(state)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    max_texts = state.models.limits.max_prompts
    if len(texts) > max_texts:
        raise InvalidField("inputs", f"has {len(texts)} texts, expected at most {max_texts}")
    tokens_of_texts = []
    for text in texts:
        request = Tokenize(prompt=text, add_special=body.add_special_tokens)
        tokens = await while_connected(
            http, model.call(request, Tokenized, request_options_of(http))
        )
        pairs = zip(tokens.tokens, tokens.offsets, strict=True)
        tokens_of_texts.append([_token(tokens.text, *pair) for pair in pairs])
    return to_json(tokens_of_texts)


def _token(text: str, token: Any, offsets: tuple[int, int]) -> TeiToken:
    start, stop = offsets
    if token.is_special and start == stop:
        return TeiToken(token.id, token.text, special=True, start=None, stop=None)
    return TeiToken(token.id, text[start:stop], token.is_special, start, stop)


def default_model(state: AppState) -> ServedModel:
    """Return the default model: one that embeds, if there is one."""
    models = [model for model in state.models.all() if not model.can("generate")]
    return min(models, key=lambda model: not model.can("embed"))


def _find_classifier(state: AppState, name: str | None) -> ServedModel:
    """Return the model `name`; without a name one of several labels, if there is one.

    Models with a single label are rerankers.
    """
    if name is None:
        scorers = [model for model in state.models.all() if model.can("score")]
        classifiers = [model for model in scorers if not model.can("rank")]
        if classifiers:
            return classifiers[0]
    return _find(state, name, "score")


def _find(state: AppState, name: str | None, purpose: Purpose) -> ServedModel:
    """Return the model `name`, or the first that serves `purpose`.

    Raises OtherModel if the model, or every model, is of another kind.
    """
    try:
        model = state.models.find(name, purpose=purpose)
    except NotFound as error:
        text = str(error) if name else f"no model {_CAPABILITIES[purpose]}"
        raise UnsupportedModel(text) from None
    if not model.can(purpose):
        raise UnsupportedModel(f"expected a model that {_CAPABILITIES[purpose]}, not {model.name}")
    return model


def _probabilities(logits: Numbers, function: str | None = None) -> Numbers:
    """Return probabilities of logits, with TEI's default unless the request names a function.

    The default is the softmax over several labels, and the sigmoid of a single one.
    """
    if (function or ("sigmoid" if logits.shape[-1] == 1 else "softmax")) == "sigmoid":
        sigmoid: Numbers = 1 / (1 + np.exp(-logits))
        return sigmoid
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    softmax: Numbers = powers / powers.sum(-1, keepdims=True)
    return softmax
