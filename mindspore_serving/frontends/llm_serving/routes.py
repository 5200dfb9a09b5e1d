"""Routes of llm-serving."""

from functools import partial

from mindspore_serving.frontends.llm_serving import answering
from mindspore_serving.frontends.llm_serving.answers import LlmServingAnswer, LlmServingError
from mindspore_serving.frontends.llm_serving.fields import FIELDS
from mindspore_serving.frontends.llm_serving.requests import (
    ClientRequest,
    LlmServingParameters,
    to_response,
)
from mindspore_serving.frontends.operation import (
    EVENT,
    EVENTS,
    JSON,
    MODEL,
    STRING,
    TEXT,
    Body,
    Lax,
)
from mindspore_serving.frontends.routes import LANGUAGE, HttpProtocol, HttpRoute

PROTOCOL = HttpProtocol(
    "llm_serving",
    to_response,
    title="llm-serving",
    about="MindSpore's llm-serving, for language models. `name` is one of the models, such as "
    f"`{MODEL}`.",
    errors={JSON: LlmServingError},
)
_STREAMS = {EVENTS: EVENT, TEXT: STRING}
_EXAMPLE = {"inputs": "Hello", "parameters": {"max_new_tokens": 8}}

_route = partial(HttpRoute, protocol=PROTOCOL, needs=LANGUAGE)
_post = partial(
    _route, "POST", body=Body(ClientRequest, {LlmServingParameters: Lax(FIELDS)}, _EXAMPLE)
)
_get = partial(_route, "GET", answers={EVENTS: EVENT})

ROUTES = (
    _post(
        "/models/{name}",
        answering.answer,
        "Continue a text; with `stream`, as events or lines",
        {JSON: LlmServingAnswer, **_STREAMS},
    ),
    _post(
        "/models/{name}/generate",
        partial(answering.answer, is_stream=False),
        "Continue a text",
        {JSON: LlmServingAnswer},
    ),
    _post(
        "/models/{name}/generate_stream",
        partial(answering.answer, is_stream=True),
        "Continue a text, as events or lines",
        _STREAMS,
    ),
    _get(
        "/serving/get_bs",
        lambda served, _: answering.batch_size(served.state),
        "Number of running sequences, as an event",
    ),
    _get(
        "/serving/get_request_numbers",
        lambda served, _: answering.request_numbers(served.state),
        "Number of queued requests, as an event",
    ),
    _get(
        "/serving/get_serverd_model_info",
        lambda served, _: answering.model_info(served.state),
        "The model and its limits, as an event",
    ),
)
