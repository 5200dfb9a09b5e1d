"""Routes of Gemini's protocol."""

from collections.abc import Callable
from functools import partial
from typing import NoReturn

from starlette.requests import Request
from starlette.types import Scope

from mindspore_serving.errors import NoRoute
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.gemini import answering, answers, embedding, models, requests
from mindspore_serving.frontends.gemini.conversation import find_ignored
from mindspore_serving.frontends.gemini.errors import to_response
from mindspore_serving.frontends.gemini.fields import CONTENT, EMBEDDING, GENERATION
from mindspore_serving.frontends.gemini.spelling import to_camel
from mindspore_serving.frontends.operation import EVENT, EVENTS, JSON, Body, Describing
from mindspore_serving.frontends.routes import LANGUAGE, HttpProtocol, HttpRoute

PROTOCOL = HttpProtocol(
    "gemini",
    to_response,
    title="Gemini",
    about="Gemini's protocol, for language models.",
    errors={JSON: answers.GeminiError},
)
_VERBS = (
    *("generateContent", "streamGenerateContent", "countTokens"),
    *("embedContent", "batchEmbedContents"),
)
_HELLO = {"contents": [{"parts": [{"text": "Hello"}]}]}
_FIELDS: dict[type, Describing] = {
    requests.GenerateContentRequest: CONTENT,
    requests.GenerationConfig: GENERATION,
}

_route = partial(HttpRoute, protocol=PROTOCOL, needs=LANGUAGE)
_body = partial(Body, respell=to_camel)
_GENERATE = _body(
    requests.GenerateContentRequest,
    _FIELDS,
    {**_HELLO, "generationConfig": {"maxOutputTokens": 8}},
)


_post = partial(_route, "POST", decodes=True)


def _rows(
    root: str, applies: Callable[[AppState, Scope], bool] | None = None
) -> tuple[HttpRoute, ...]:
    """Return the routes below `root`; OpenAI's protocol may have the paths of models."""
    get = partial(_route, "GET", applies=applies)

    def path(verb: str) -> str:
        return f"{root}/{{name:path}}:{verb}"

    return (
        _post(
            path("generateContent"),
            answering.generate,
            "Answer a chat",
            {JSON: answers.GenerateContentResponse},
            body=_GENERATE,
            find_ignored=find_ignored,
        ),
        _post(
            path("streamGenerateContent"),
            answering.stream,
            "Answer a chat, as an array or with `alt=sse` as events",
            {JSON: list[answers.GenerateContentResponse], EVENTS: EVENT},
            body=_GENERATE,
            find_ignored=find_ignored,
            query=("alt",),
        ),
        _post(
            path("countTokens"),
            answering.count,
            "Count the tokens of a chat",
            {JSON: answers.TokenCount},
            body=_body(requests.CountTokensRequest, example=_HELLO),
        ),
        _post(
            path("embedContent"),
            embedding.embed,
            "Embed a text",
            {JSON: answers.EmbedContentResponse},
            body=_body(requests.EmbedContentRequest, {requests.EmbedContentRequest: EMBEDDING}),
        ),
        _post(
            path("batchEmbedContents"),
            embedding.embed_all,
            "Embed texts",
            {JSON: answers.BatchEmbedContentsResponse},
            body=_body(requests.BatchEmbedContentsRequest),
        ),
        get(root, models.list_all, "List the models", {JSON: answers.GeminiModels}),
        get(
            f"{root}/{{name:path}}",
            models.get_model,
            "Get a model",
            {JSON: answers.GeminiModel},
        ),
    )


def _refuse_method(_: AppState, http: Request) -> NoReturn:
    """Refuse a method that no model has.  Raises NoRoute."""
    verb = http.path_params["verb"]
    raise NoRoute(f"models have no method {verb!r} here, expected one of {', '.join(_VERBS)}")


_OTHER = _route("POST", "/v1beta/models/{name}:{verb}", _refuse_method, "Always 404: no method")
ROUTES = (*_rows("/v1beta/models"), _OTHER, *_rows("/v1/models", models.is_models_request))
