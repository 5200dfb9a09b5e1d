"""Routes of Anthropic's protocol; those of models answer only Anthropic's clients."""

from functools import partial

from mindspore_serving.frontends.anthropic import answering, batches, models
from mindspore_serving.frontends.anthropic.answers import AnthropicAnswer, AnthropicError, Count
from mindspore_serving.frontends.anthropic.conversation import find_ignored
from mindspore_serving.frontends.anthropic.errors import to_refusal, to_response
from mindspore_serving.frontends.anthropic.fields import MESSAGES
from mindspore_serving.frontends.anthropic.requests import CountRequest, MessagesRequest
from mindspore_serving.frontends.operation import EVENT, EVENTS, JSON, MODEL, Body
from mindspore_serving.frontends.routes import GENERATING, LANGUAGE, HttpProtocol, HttpRoute

PROTOCOL = HttpProtocol(
    "anthropic",
    to_response,
    to_refusal,
    title="Anthropic",
    about="Anthropic's protocol, for language models.",
    errors={JSON: AnthropicError},
)
_HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}

_route = partial(HttpRoute, protocol=PROTOCOL, needs=LANGUAGE)
_post = partial(_route, "POST", decodes=True, find_ignored=find_ignored)
_batch = f"{batches.BATCHES}/{{name}}"
_JSONL = {"application/x-jsonl": {"type": "string"}}
_BATCH = {JSON: batches.MessageBatchObject}
_models = partial(
    _route, "GET", applies=models.is_models_request
)  # OpenAI's protocol has the same paths

ROUTES = (
    _post(
        "/v1/messages",
        answering.answer,
        "Answer a chat; with `stream`, as events",
        {JSON: AnthropicAnswer, EVENTS: EVENT},
        body=Body(MessagesRequest, {MessagesRequest: MESSAGES}, {**_HELLO, "max_tokens": 8}),
        refused_early=GENERATING,
    ),
    _post(
        "/v1/messages/count_tokens",
        answering.count,
        "Count the tokens of a conversation",
        {JSON: Count},
        body=Body(CountRequest, {CountRequest: MESSAGES}, _HELLO),
    ),
    _route(
        "POST",
        batches.BATCHES,
        batches.create,
        "Create a batch of messages",
        _BATCH,
        body=Body(batches.MessageBatchRequest),
        decodes=True,
    ),
    _route(
        "GET",
        batches.BATCHES,
        batches.list_all,
        "List the batches of messages",
        {JSON: batches.MessageBatchList},
        query=("limit", "after_id", "before_id"),
    ),
    _route("GET", _batch, batches.get_batch, "Get a batch of messages", _BATCH),
    _route("POST", f"{_batch}/cancel", batches.cancel, "Cancel a batch of messages", _BATCH),
    _route("GET", f"{_batch}/results", batches.get_results, "Get the results of a batch", _JSONL),
    _route(
        "DELETE",
        _batch,
        batches.delete,
        "Delete a batch of messages",
        {JSON: batches.MessageBatchDeleted},
    ),
    _models("/v1/models", lambda state, _: models.list_all(state)),
    _models(
        "/v1/models/{name:path}",
        lambda state, http: models.to_model(
            state.models.find(http.path_params["name"], is_exact=True)
        ),
    ),
)
