"""POST /v1/responses/compact: shorten a long conversation.

The users' messages stay. The model summarises the rest in an item that clients send back as it is.
"""

import secrets
import time
from typing import Any

import msgspec
from starlette.requests import Request

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import renaming_fields
from mindspore_serving.frontends.chat.fields import Fields
from mindspore_serving.frontends.chat.messages import ChatMessage
from mindspore_serving.frontends.chat.models import find_generator
from mindspore_serving.frontends.chat.opaque import encode_text
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.openai import chat
from mindspore_serving.frontends.openai.answers import Compacted, OpenAIResponse
from mindspore_serving.frontends.openai.fields import CHAT
from mindspore_serving.frontends.openai.requests import OpenAIChatRequest
from mindspore_serving.frontends.openai.response_decoding import read
from mindspore_serving.frontends.openai.response_input import (
    to_items,
    to_messages,
)
from mindspore_serving.frontends.openai.response_requests import (
    CompactRequest,
    ItemType,
    MessageItem,
    ResponseRequest,
)
from mindspore_serving.frontends.openai.response_writing import ResponseBuilder, collect_response
from mindspore_serving.frontends.openai.stored_responses import conversation_before
from mindspore_serving.frontends.request_options import request_options_of

FIELDS = Fields(
    "openai",
    ignored=("image", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
)
_INSTRUCTION = (
    "Sum up this conversation for whoever goes on with it: what is to be done, what was found out "
    "and decided, what is still open. Answer with the summary alone."
)
_SUMMARY_SHARE = 4  # the summary may fill a quarter of the context

Object = dict[str, Any]


async def compact(state: AppState, http: Request, body: CompactRequest) -> Compacted:
    """Return the users' messages of a conversation and a summary of all of it."""
    model = find_generator(state.models, body.model)
    before = await conversation_before(state, http, body.previous_response_id)
    if not body.input and not before:
        raise InvalidField("input", "is missing, expected a text, items or previous_response_id")
    items = [*before, *(to_items(body.input) if body.input else ())]
    conversation = to_messages([msgspec.Raw(item) for item in items], body.instructions)
    max_tokens = max(1, model.card.max_model_len // _SUMMARY_SHARE)
    chat_body = OpenAIChatRequest(
        messages=[*conversation.messages, ChatMessage("user", _INSTRUCTION)],
        max_completion_tokens=max_tokens,
    )
    builder = ResponseBuilder(ResponseRequest(input=""), model.name)
    with renaming_fields("input", CHAT, chat_body):
        generation = model.generate(chat.to_request(chat_body, model), request_options_of(http))
        with generation:
            await while_connected(http, generation.begin())
            response = await while_connected(http, collect_response(generation, builder))
    summary = {
        "id": f"cmp_{secrets.token_hex(16)}",
        "type": "compaction",
        "encrypted_content": encode_text(_text_of(response)),
    }
    output = [*(_to_user_message(item) for item in items if _is_user_message(item)), summary]
    return Compacted(response.id, "response.compaction", int(time.time()), output, response.usage)


def _is_user_message(item: bytes) -> bool:
    if read("input", item, ItemType).type not in (None, "message"):
        return False
    return read("input", item, MessageItem).role == "user"


def _to_user_message(item: bytes) -> Object:
    """Return a user's message in the form in which clients send it back."""
    message: Object = msgspec.json.decode(item)
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    name = message.get("id") or f"msg_{secrets.token_hex(16)}"
    fixed = {"id": name, "type": "message", "role": "user", "status": "completed"}
    return {**fixed, "content": content}


def _text_of(response: OpenAIResponse) -> str:
    parts = [part for item in response.output for part in item.get("content") or ()]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")
