"""Routes of Text Generation Inference, except GET / and GET /health, which all protocols share."""

from functools import partial

import msgspec
from starlette.types import Scope

from mindspore_serving.frontends.chat.errors import Error as OpenAIError
from mindspore_serving.frontends.health import has_models
from mindspore_serving.frontends.openai.answers import Tokens
from mindspore_serving.frontends.openai.requests import TokenizeRequest
from mindspore_serving.frontends.operation import EVENT, EVENTS, JSON, STRING, TEXT, Body, Unlimited
from mindspore_serving.frontends.routes import LANGUAGE, HttpProtocol, HttpRoute
from mindspore_serving.frontends.tgi import answering, answers, requests
from mindspore_serving.frontends.tgi.aliases import invocations, is_not_declined
from mindspore_serving.frontends.tgi.errors import to_refusal, to_response
from mindspore_serving.frontends.tgi.fields import FIELDS
from mindspore_serving.frontends.tgi.generating import TgiService

PROTOCOL = HttpProtocol(
    "tgi",
    to_response,
    to_refusal,
    title="TGI",
    about="Text Generation Inference: the routes of Hugging Face's server, for language models.",
    errors={JSON: answers.TgiErrorBody, TEXT: STRING},
)
_EXAMPLE = {"inputs": "Hello", "parameters": {"max_new_tokens": 8}}
_MESSAGES = {"messages": [{"role": "user", "content": "Hello"}]}
# Errors of paths that both protocols have.
_EITHER = {"4XX": {JSON: (answers.TgiErrorBody, OpenAIError), TEXT: STRING}}


class StreamParameters(requests.TgiParameters):
    """Parameters of a streamed request, whose errors are events."""


class StreamRequest(requests.TgiGenerateRequest, kw_only=True):
    """Body of /generate_stream."""

    parameters: StreamParameters = msgspec.field(default_factory=StreamParameters)


class EitherRequest(requests.CompatRequest, kw_only=True):
    """Body of POST /, streamed or not."""

    parameters: StreamParameters = msgspec.field(default_factory=StreamParameters)


def _is_meant(served: TgiService, scope: Scope) -> bool:
    return has_models(served.state.control) and is_not_declined(scope)


def _stream_body(kind: type) -> Body:
    return Body(kind, {StreamParameters: Unlimited(FIELDS)}, _EXAMPLE)


_route = partial(HttpRoute, protocol=PROTOCOL, needs=LANGUAGE, applies=_is_meant)
_post = partial(_route, "POST")
_get = partial(_route, "GET")

ROUTES = (
    _post(
        "/generate",
        TgiService.generate,
        "Continue a text",
        {JSON: answers.GenerateResponse},
        body=Body(requests.TgiGenerateRequest, {requests.TgiParameters: FIELDS}, _EXAMPLE),
    ),
    _post(
        "/generate_stream",
        TgiService.generate_stream,
        "Continue a text, as events",
        {EVENTS: EVENT},
        body=_stream_body(StreamRequest),
    ),
    _post(
        "/",
        TgiService.compat,
        "Continue a text; with `stream`, as events",
        {JSON: list[answers.GenerateResponse], EVENTS: EVENT},
        body=_stream_body(EitherRequest),
    ),
    _post(
        "/invocations",
        invocations,
        "SageMaker's route: a body of TGI, or of OpenAI's chats or completions",
        {JSON: (list[answers.GenerateResponse], {"type": "object"}), EVENTS: EVENT},
        body=_stream_body(EitherRequest),
        other_answers=_EITHER,
    ),
    _post(
        "/tokenize",
        answering.tokenize,
        "Tokenize a text; or a prompt or messages in vLLM's form",
        {JSON: (list[answers.TgiToken], Tokens)},
        body=Body(
            (requests.TgiGenerateRequest, TokenizeRequest),
            {requests.TgiParameters: FIELDS},
            {"inputs": "Hello"},
        ),
        other_answers=_EITHER,
    ),
    _post(
        "/chat_tokenize",
        answering.chat_tokenize,
        "Tokenize a chat",
        {JSON: answers.ChatTokenizeResponse},
        body=Body(requests.TgiChatRequest, example=_MESSAGES),
    ),
    _get("/info", answering.show_info, "Get the model and the limits", {JSON: answers.TgiInfo}),
    _get(
        "/ping",
        lambda served, _: answering.root_health(served.state.control),
        "200 if everything can be called",
    ),
)
