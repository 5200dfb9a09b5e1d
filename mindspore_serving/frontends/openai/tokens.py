"""POST /tokenize and /detokenize: the tokens of a text, and the text of token ids."""

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import (
    Detokenize,
    Detokenized,
    Tokenize,
    Tokenized,
)
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.reading_messages import DescribeTokenizer, TokenizerDescribed
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat import messages, tools
from mindspore_serving.frontends.chat.errors import renaming_fields
from mindspore_serving.frontends.chat.prompts import check_tokens
from mindspore_serving.frontends.decoding import check_free
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.openai.answers import OpenAIPrompt, Tokens
from mindspore_serving.frontends.openai.fields import CHAT
from mindspore_serving.frontends.openai.requests import DetokenizeRequest, TokenizeRequest
from mindspore_serving.frontends.request_options import request_options_of


async def info(state: AppState, http: Request) -> Response:
    """Return the tokenizer of the model that the query names, as tokenizer_config.json has it."""
    model = state.models.find(http.query_params.get("model"))
    call = model.call(DescribeTokenizer(), TokenizerDescribed, request_options_of(http))
    with renaming_fields("model", CHAT, DetokenizeRequest(tokens=[])):
        tokenizer = await while_connected(http, call)
    return Response(tokenizer.config, media_type="application/json")


async def tokenize(state: AppState, http: Request, body: TokenizeRequest) -> Tokens:
    """Return the tokens of a prompt or of messages."""
    model = state.models.find(body.model)
    call = model.call(to_request(body, model.card), Tokenized, request_options_of(http))
    with renaming_fields("prompt" if body.messages is None else "messages", CHAT, body):
        tokenized = await while_connected(http, call)
    ids = [token.id for token in tokenized.tokens]
    texts = [token.text for token in tokenized.tokens] if body.return_token_strs else None
    return Tokens(len(ids), model.card.max_model_len, ids, texts)


def to_request(body: TokenizeRequest, card: ModelCard) -> Tokenize:
    """Translate the body of /tokenize.

    Raises InvalidField unless exactly one of prompt and messages is set.
    """
    if (body.prompt is None) == (body.messages is None):
        raise InvalidField("prompt", text="expected exactly one of prompt and messages")
    if body.messages is None:
        return Tokenize(prompt=body.prompt, add_special=body.add_special_tokens is not False)
    options = dict(body.chat_template_kwargs or {})
    check_free("chat_template_kwargs", options)
    if body.add_generation_prompt is not None:
        options["add_generation_prompt"] = body.add_generation_prompt
    return Tokenize(
        messages=messages.to_template(body.messages, card),
        tools=tools.to_tools(body.tools or ()) or None,
        template_options=options,
    )


async def detokenize(state: AppState, http: Request, body: DetokenizeRequest) -> OpenAIPrompt:
    """Return the text of token ids."""
    model = state.models.find(body.model)
    check_tokens("tokens", body.tokens, model.card)
    call = model.call(Detokenize(token_ids=body.tokens), Detokenized, request_options_of(http))
    with renaming_fields("tokens", CHAT, body):
        decoded = await while_connected(http, call)
    return OpenAIPrompt(decoded.text)
