"""POST /v1/responses/compact: a long conversation made short.  What users said stays, and the model
sums all of it up, in an item that clients give back as it is.
"""

import secrets
import time
from typing import Any

import msgspec
from starlette.requests import Request

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import naming
from mindspore_serving.frontends.chat.fields import Fields
from mindspore_serving.frontends.chat.messages import ChatMessage
from mindspore_serving.frontends.chat.models import find_generator
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.openai import chat
from mindspore_serving.frontends.openai.answers import Compacted, OpenAIResponse
from mindspore_serving.frontends.openai.fields import CHAT
from mindspore_serving.frontends.openai.requests import OpenAIChatRequest
from mindspore_serving.frontends.openai.response_input import (
    encode_summary,
    read,
    to_items,
    to_messages,
)
from mindspore_serving.frontends.openai.response_requests import (
    CompactRequest,
    MessageItem,
    ResponseKind,
    ResponseRequest,
)
from mindspore_serving.frontends.openai.response_writing import ResponseWriting, write_whole
from mindspore_serving.frontends.openai.stored_responses import conversation_before
from mindspore_serving.frontends.request_options import request_options_of

FIELDS = Fields(
    "openai",
    ignored=("image", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
)
_ASK = (
    "Sum up this conversation for whoever goes on with it: what is to be done, what was found out "
    "and decided, what is still open. Answer with the summary alone."
)
_SHARE = 4  # of the context, for the summary

Object = dict[str, Any]


async def compact(state: AppState, http: Request, body: CompactRequest) -> Compacted:
    """The short conversation."""
    model = find_generator(state.models, body.model)
    before = await conversation_before(state, http, body.previous_response_id)
    if not body.input and not before:
        raise InvalidField("input", "is missing, expected a text, items or previous_response_id")
    items = [*before, *(to_items(body.input) if body.input else ())]
    messages = to_messages([msgspec.Raw(item) for item in items], body.instructions)
    most = max(1, model.card.max_model_len // _SHARE)
    asked = OpenAIChatRequest(
        messages=[*messages.found, ChatMessage("user", _ASK)], max_completion_tokens=most
    )
    writing = ResponseWriting(ResponseRequest(input=""), model.name)
    with naming("input", CHAT, asked):
        generation = model.generate(chat.to_request(asked, model), request_options_of(http))
        with generation:
            await while_connected(http, generation.begin())
            whole = await while_connected(http, write_whole(generation, writing))
    summary = {
        "id": f"cmp_{secrets.token_hex(16)}",
        "type": "compaction",
        "encrypted_content": encode_summary(_text_of(whole)),
    }
    output = [*(_shown(item) for item in items if _is_users(item)), summary]
    return Compacted(whole.id, "response.compaction", int(time.time()), output, whole.usage)


def _is_users(item: bytes) -> bool:
    if read("input", item, ResponseKind).type not in (None, "message"):
        return False
    return read("input", item, MessageItem).role == "user"


def _shown(item: bytes) -> Object:
    """What a user said, as clients give it back."""
    message: Object = msgspec.json.decode(item)
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    name = message.get("id") or f"msg_{secrets.token_hex(16)}"
    fixed = {"id": name, "type": "message", "role": "user", "status": "completed"}
    return {**fixed, "content": content}


def _text_of(whole: OpenAIResponse) -> str:
    parts = [part for item in whole.output for part in item.get("content") or ()]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")
