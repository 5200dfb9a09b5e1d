"""GET /info, POST /tokenize and /chat_tokenize: what there is, and what a text's tokens are."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving import __version__
from mindspore_serving.core.llm_messages import Tokenize, Tokenized
from mindspore_serving.frontends.language import LanguageModel
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.tgi.aliases import Forwarded, other_path
from mindspore_serving.frontends.tgi.answers import (
    ChatTokenizeAnswer,
    Info,
    SimpleToken,
    encode,
)
from mindspore_serving.frontends.tgi.checks import Limits, find_model, to_grammar
from mindspore_serving.frontends.tgi.errors import TgiError
from mindspore_serving.frontends.tgi.recorder import Recorder
from mindspore_serving.frontends.tgi.requests import (
    CHAT,
    GENERATE,
    check_type,
    decode,
    read_json,
    read_limited,
)

TOKENIZE = "/tokenize"  # where vLLM's protocol has a route too
PREPARE_THREADS = 2  # of a worker, which look at prompts

Answer = Callable[[Request], Awaitable[Response]]


def info(site: Site, limits: Limits) -> Answer:
    async def answer(_: Request) -> Response:
        model = find_model(site.models, None)
        card = model.card
        return _json(
            Info(
                model_id=model.name,
                model_pipeline_tag="text-generation" if card.can_generate else None,
                max_concurrent_requests=limits.max_concurrent_requests,
                max_best_of=limits.max_best_of,
                max_stop_sequences=limits.max_stop_sequences,
                max_input_tokens=card.max_model_len - 1,
                max_total_tokens=card.max_model_len,
                validation_workers=PREPARE_THREADS,
                max_client_batch_size=limits.max_client_batch_size,
                router="mindspore-serving",
                version=__version__,
            )
        )

    return answer


def tokenize(site: Site) -> Answer:
    async def answer(request: Request) -> Response:
        body = await read_limited(request, site.max_body)
        path = other_path(body, TOKENIZE, TOKENIZE)
        if path:
            return Forwarded(body, path)
        check_type(request)
        asked = decode(body, GENERATE)
        model = find_model(site.models, asked.parameters.adapter_id)
        tokens, _ = await _tokens(model, Tokenize(prompt=asked.inputs))
        truncate = asked.parameters.truncate
        return _json(tokens[-truncate:] if truncate else tokens)

    return answer


def chat_tokenize(site: Site, recorder: Recorder) -> Answer:
    async def answer(request: Request) -> Response:
        asked = decode(await read_json(request, site.max_body), CHAT)
        recorder.count_request()
        to_grammar(asked.response_format)
        if asked.tools and asked.response_format:
            text = "Tool error: Grammar and tools are mutually exclusive"
            raise TgiError(422, "tool_error", text)
        model = find_model(site.models, asked.model)
        ask = Tokenize(messages=asked.messages, tools=asked.tools, add_special=False)
        tokens, text = await _tokens(model, ask)
        return _json(ChatTokenizeAnswer(tokens, text))

    return answer


async def _tokens(model: LanguageModel, ask: Tokenize) -> tuple[list[SimpleToken], str]:
    found = await model.ask(ask, Tokenized)
    text = found.text
    tokens = [
        SimpleToken(token.id, text[start:stop], start, stop)
        for token, (start, stop) in zip(found.tokens, found.offsets, strict=True)
    ]
    return tokens, text


def _json(found: object) -> Response:
    return Response(encode(found), media_type="application/json")
