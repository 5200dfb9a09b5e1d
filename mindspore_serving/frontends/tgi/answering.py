"""Routes without generation: tokens, the model and its limits, health."""

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving import __version__
from mindspore_serving.core.llm_messages import Tokenize, Tokenized
from mindspore_serving.core.service import Control
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.tgi.aliases import Forwarded, other_path
from mindspore_serving.frontends.tgi.answers import ChatTokenizeResponse, TgiInfo, TgiToken
from mindspore_serving.frontends.tgi.checks import find_model
from mindspore_serving.frontends.tgi.errors import TgiError
from mindspore_serving.frontends.tgi.generating import TgiService
from mindspore_serving.frontends.tgi.requests import (
    CHAT,
    GENERATE,
    check_type,
    decode,
    read_json,
    read_limited,
)

TOKENIZE = "/tokenize"  # also a route of vLLM's protocol
PREPARE_THREADS = 2  # threads of a worker that tokenize prompts


def root_health(control: Control) -> Response:
    """Return an empty body if everything can be called, else 503 and the reason in JSON."""
    if control.is_ready:
        return Response()
    return TgiError(503, "healthcheck", "unhealthy", "1").to_response()


async def show_info(served: TgiService, _: Request) -> Response:
    """Return the model and the limits."""
    model, limits = find_model(served.state.models, None), served.limits
    card = model.card
    return to_json(
        TgiInfo(
            model_id=model.name,
            model_pipeline_tag="text-generation" if card.can_generate else None,
            max_concurrent_requests=limits.max_concurrent_requests,
            max_best_of=limits.max_best_of,
            max_stop_sequences=limits.max_stop_sequences,
            max_input_tokens=card.longest_prompt,
            max_total_tokens=card.max_model_len,
            validation_workers=PREPARE_THREADS,
            max_client_batch_size=limits.max_client_batch_size,
            router="mindspore-serving",
            version=__version__,
        )
    )


async def tokenize(served: TgiService, request: Request) -> Response:
    """Return the tokens of a text."""
    state = served.state
    body = await read_limited(request, state)
    path = other_path(body, TOKENIZE, TOKENIZE)
    if path:
        return Forwarded(body, path)
    check_type(request)
    generate = decode(body, GENERATE)
    model = find_model(state.models, generate.parameters.adapter_id)
    tokens, _ = await _tokens(request, model, Tokenize(prompt=generate.inputs))
    truncate = generate.parameters.truncate
    return to_json(tokens[-truncate:] if truncate else tokens)


async def chat_tokenize(served: TgiService, request: Request) -> Response:
    """Return the tokens and the text of a chat."""
    state = served.state
    body = decode(await read_json(request, state), CHAT)
    served.recorder.count_request()
    if body.response_format:
        body.response_format.to_grammar()  # raises if it is invalid
    if body.tools and body.response_format:
        text = "Tool error: Grammar and tools are mutually exclusive"
        raise TgiError(422, "tool_error", text)
    model = find_model(state.models, body.model)
    conversation = Tokenize(messages=body.messages, tools=body.tools, add_special=False)
    tokens, text = await _tokens(request, model, conversation)
    return to_json(ChatTokenizeResponse(tokens, text))


async def _tokens(
    http: Request, model: ServedModel, request: Tokenize
) -> tuple[list[TgiToken], str]:
    tokenized = await model.call(request, Tokenized, request_options_of(http))
    text = tokenized.text
    tokens = [
        TgiToken(token.id, text[start:stop], start, stop)
        for token, (start, stop) in zip(tokenized.tokens, tokenized.offsets, strict=True)
    ]
    return tokens, text
