"""POST /v1/score and /v1/classify, which vLLM has beside OpenAI's routes."""

import secrets
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.reading_messages import Score, Side
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import naming
from mindspore_serving.frontends.chat.fields import Fields, Int, unexpected
from mindspore_serving.frontends.chat.scores import find_scorer, score
from mindspore_serving.frontends.json_answer import to_json

FIELDS = Fields("openai", ignored=("user", "priority"))
Texts = str | list[str]


class ScoreRequest(msgspec.Struct, kw_only=True):
    """The body of /score: `text_1` are the queries, one for all or one for each of `text_2`."""

    text_1: Texts
    text_2: Texts
    model: str | None = None
    truncate_prompt_tokens: Int | None = None
    instruction: str | None = None


class ClassifyRequest(msgspec.Struct, kw_only=True):
    """The body of /classify."""

    input: Texts
    model: str | None = None
    truncate_prompt_tokens: Int | None = None


class Rated(msgspec.Struct):
    index: int
    object: str
    score: float


class Classified(msgspec.Struct):
    """The likeliest label, and the probabilities of all in the order of the model's outputs."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ScoreAnswer(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    data: list[Rated]
    usage: dict[str, int]


class ClassifyAnswer(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    data: list[Classified]
    usage: dict[str, int]


async def rate(state: AppState, http: Request, body: ScoreRequest) -> Response:
    """How well each of `text_2` fits its query, in their order."""
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
    with naming("text_2", FIELDS, body):
        found = await score(http, model, request)
    values = found.probabilities[:, 0].tolist()
    data = [Rated(index, "score", value) for index, value in enumerate(values)]
    return to_json(ScoreAnswer(*_head("score", model.name), data, _usage(found.num_tokens)))


async def classify(state: AppState, http: Request, body: ClassifyRequest) -> Response:
    """The labels of each text."""
    model = find_scorer(state.models, body.model, ranks=False)
    request = Score(
        texts=_listed("input", body.input), truncate=_to_side(body.truncate_prompt_tokens)
    )
    with naming("input", FIELDS, body):
        found = await score(http, model, request)
    labels = model.card.labels
    best = found.probabilities.argmax(-1).tolist()
    data = [
        Classified(index, labels[best[index]], row, len(labels))
        for index, row in enumerate(found.probabilities.tolist())
    ]
    return to_json(ClassifyAnswer(*_head("classify", model.name), data, _usage(found.num_tokens)))


def _listed(name: str, given: Texts) -> list[str]:
    if not given:
        raise InvalidField(name, "is empty, expected at least one text")
    return [given] if isinstance(given, str) else given


def _to_side(given: int | None) -> Side:
    """vLLM's -1 is as much as the model takes."""
    if given not in (None, -1):
        raise unexpected(
            "truncate_prompt_tokens", given, "-1, which cuts texts where the model's context ends"
        )
    return "" if given is None else "right"


def _head(kind: str, model: str) -> tuple[str, str, int, str]:
    return f"{kind}-{secrets.token_hex(16)}", "list", int(time.time()), model


def _usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": count, "total_tokens": count}
