"""Routes of llama.cpp's server that other protocols do not have."""

from functools import partial

from mindspore_serving.frontends.chat.errors import Error, to_response
from mindspore_serving.frontends.llamacpp import answering, requests
from mindspore_serving.frontends.llamacpp.answers import LlamaCppAnswer
from mindspore_serving.frontends.llamacpp.fields import INFILL, PROMPT
from mindspore_serving.frontends.operation import EVENT, EVENTS, JSON, Body
from mindspore_serving.frontends.routes import GENERATING, LANGUAGE, HttpProtocol, HttpRoute

PROTOCOL = HttpProtocol(
    "llamacpp",
    to_response,
    title="llama.cpp",
    about="Routes of llama.cpp's server, for language models; errors have OpenAI's form.",
    errors={JSON: Error},
)
_post = partial(
    HttpRoute,
    "POST",
    answers={JSON: LlamaCppAnswer, EVENTS: EVENT},
    protocol=PROTOCOL,
    decodes=True,
    needs=LANGUAGE,
    refused_early=GENERATING,
)

ROUTES = (
    _post(
        "/completion",
        answering.complete,
        "Continue a text; with `stream`, as events",
        body=Body(
            requests.PromptRequest,
            {requests.PromptRequest: PROMPT},
            {"prompt": "Hello", "n_predict": 8},
        ),
    ),
    _post(
        "/infill",
        answering.infill,
        "Fill in code between a prefix and a suffix; with `stream`, as events",
        body=Body(
            requests.InfillRequest,
            {requests.InfillRequest: INFILL},
            {"input_prefix": "def f(", "input_suffix": "return x", "n_predict": 8},
        ),
    ),
)
