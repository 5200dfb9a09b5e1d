"""POST /v1/score and /v1/classify, vLLM's additions to OpenAI's routes."""

import secrets
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.reading_messages import Score, Side
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import renaming_fields
from mindspore_serving.frontends.chat.fields import Fields, Int, unexpected
from mindspore_serving.frontends.chat.scores import find_scorer, score
from mindspore_serving.frontends.json_answer import to_json

FIELDS = Fields("openai", ignored=("user", "priority"))
Texts = str | list[str]


class ScoreRequest(msgspec.Struct, kw_only=True):
    """Body of /v1/score: `text_1` has one query for all of `text_2`, or one for each of them."""

    text_1: Texts
    text_2: Texts
    model: str | None = None
    truncate_prompt_tokens: Int | None = None
    instruction: str | None = None


class ClassifyRequest(msgspec.Struct, kw_only=True):
    """Body of /v1/classify."""

    input: Texts
    model: str | None = None
    truncate_prompt_tokens: Int | None = None


class TextScore(msgspec.Struct):
    """Score of one text."""

    index: int
    object: str
    score: float


class TextLabels(msgspec.Struct):
    """Likeliest label of a text, and the probabilities of all labels in the model's order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ScoreAnswer(msgspec.Struct):
    """Answer of /v1/score."""

    id: str
    object: str
    created: int
    model: str
    data: list[TextScore]
    usage: dict[str, int]


class ClassifyAnswer(msgspec.Struct):
    """Answer of /v1/classify."""

    id: str
    object: str
    created: int
    model: str
    data: list[TextLabels]
    usage: dict[str, int]


async def score_texts(state: AppState, http: Request, body: ScoreRequest) -> Response:
    """Score how well each text of `text_2` fits its query."""
    model = find_scorer(state.models, body.model)
    queries, texts = _listed("text_1", body.text_1), _listed("text_2", body.text_2)
    if len(queries) not in (1, len(texts)):
        problem = f"has {len(queries)} texts, expected 1 or as many as text_2: {len(texts)}"
        raise InvalidField("text_1", problem)
    request = Score(
        texts=texts,
        queries=queries,
        instruction=body.instruction or "",
        truncate=_to_side(body.truncate_prompt_tokens),
    )
    with renaming_fields("text_2", FIELDS, body):
        scores = await score(http, model, request)
    values = scores.probabilities[:, 0].tolist()
    data = [TextScore(index, "score", value) for index, value in enumerate(values)]
    return to_json(ScoreAnswer(*_head("score", model.name), data, _usage(scores.num_tokens)))


async def classify(state: AppState, http: Request, body: ClassifyRequest) -> Response:
    """Classify each text."""
    model = find_scorer(state.models, body.model, ranks=False)
    request = Score(
        texts=_listed("input", body.input), truncate=_to_side(body.truncate_prompt_tokens)
    )
    with renaming_fields("input", FIELDS, body):
        scores = await score(http, model, request)
    labels = model.card.labels
    best = scores.probabilities.argmax(-1).tolist()
    data = [
        TextLabels(index, labels[best[index]], row, len(labels))
        for index, row in enumerate(scores.probabilities.tolist())
    ]
    return to_json(ClassifyAnswer(*_head("classify", model.name), data, _usage(scores.num_tokens)))


def _listed(name: str, texts: Texts) -> list[str]:
    if not texts:
        raise InvalidField(name, "is empty, expected at least one text")
    return [texts] if isinstance(texts, str) else texts


def _to_side(limit: int | None) -> Side:
    """Return the side at which to truncate; vLLM's -1 means at the model's maximum length."""
    if limit not in (None, -1):
        raise unexpected(
            "truncate_prompt_tokens",
            limit,
            "-1, which truncates texts to the model's maximum length",
        )
    return "" if limit is None else "right"


def _head(kind: str, model: str) -> tuple[str, str, int, str]:
    return f"{kind}-{secrets.token_hex(16)}", "list", int(time.time()), model


def _usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": count, "total_tokens": count}
