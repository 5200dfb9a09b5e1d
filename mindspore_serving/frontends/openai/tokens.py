"""POST /tokenize and /detokenize: what a text costs, and what ids stand for."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mindspore_serving.core.llm_messages import Detokenize, Detokenized, Tokenize, Tokenized
from mindspore_serving.frontends.disconnect import while_there
from mindspore_serving.frontends.language import RefusedError
from mindspore_serving.frontends.openai import messages, tools
from mindspore_serving.frontends.openai.decoding import check_free
from mindspore_serving.frontends.openai.endpoint import post, timeout_of
from mindspore_serving.frontends.openai.errors import WrongField, to_wrong_field
from mindspore_serving.frontends.openai.requests import DetokenizeRequest, TokenizeRequest
from mindspore_serving.frontends.openai.sampling import check_token
from mindspore_serving.frontends.site import Site


def routes(site: Site) -> list[BaseRoute]:
    return [
        post(site, "/tokenize", TokenizeRequest, tokenize),
        post(site, "/detokenize", DetokenizeRequest, detokenize),
    ]


async def tokenize(site: Site, request: Request, asked: TokenizeRequest) -> Response:
    model = site.models.find(asked.model)
    asking = model.ask(to_ask(asked), Tokenized, timeout_of(request))
    try:
        found = await while_there(request, asking)
    except RefusedError as error:
        param = "prompt" if asked.messages is None else "messages"
        raise to_wrong_field(error, param, param) from None
    whole: dict[str, Any] = {
        "count": len(found.tokens),
        "max_model_len": model.card.max_model_len,
        "tokens": [token.id for token in found.tokens],
        "token_strs": None,
    }
    if asked.return_token_strs:
        whole["token_strs"] = [token.text for token in found.tokens]
    return Response(msgspec.json.encode(whole), media_type="application/json")


def to_ask(asked: TokenizeRequest) -> Tokenize:
    """Raises WrongField if there is not just one of prompt and messages."""
    if (asked.prompt is None) == (asked.messages is None):
        raise WrongField("prompt", "expected just one of prompt and messages")
    if asked.messages is None:
        return Tokenize(prompt=asked.prompt, add_special=asked.add_special_tokens is not False)
    options = dict(asked.chat_template_kwargs or {})
    check_free("chat_template_kwargs", options)
    if asked.add_generation_prompt is not None:
        options["add_generation_prompt"] = asked.add_generation_prompt
    return Tokenize(
        messages=messages.to_template(asked.messages),
        tools=tools.to_template(asked.tools or ()) or None,
        template_options=options,
    )


async def detokenize(site: Site, request: Request, asked: DetokenizeRequest) -> Response:
    model = site.models.find(asked.model)
    for token_id in (min(asked.tokens, default=0), max(asked.tokens, default=0)):
        check_token("tokens", token_id, model.card)
    asking = model.ask(Detokenize(token_ids=asked.tokens), Detokenized, timeout_of(request))
    try:
        found = await while_there(request, asking)
    except RefusedError as error:
        raise to_wrong_field(error, "tokens", "tokens") from None
    return Response(msgspec.json.encode({"prompt": found.text}), media_type="application/json")
