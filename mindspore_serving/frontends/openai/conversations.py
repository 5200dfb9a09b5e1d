"""/v1/conversations: items that are kept, and that responses read and add to."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.requests import Request

from mindspore_serving.errors import Conflict, InvalidField, NoRoute
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.conversation_store import NewItem, decode_body
from mindspore_serving.frontends.openai.answers import InputItems, OpenAIResponse
from mindspore_serving.frontends.openai.batches import check_metadata
from mindspore_serving.frontends.openai.response_input import to_items, to_messages
from mindspore_serving.frontends.openai.response_requests import (
    ItemType,
    ResponseRequest,
    name_of,
)
from mindspore_serving.frontends.openai.response_tools import CALLS
from mindspore_serving.frontends.openai.stored_responses import (
    check_size,
    conversation_before,
    owner_of,
    to_item,
    to_page,
)
from mindspore_serving.frontends.state.database import Record

_PREFIXES = {"message": "msg", "reasoning": "rs", **{k: row.prefix for k, row in CALLS.items()}}
_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)

Object = dict[str, Any]


class ConversationObject(msgspec.Struct, kw_only=True):
    """A conversation in OpenAI's form."""

    id: str
    object: str = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(msgspec.Struct):
    """Answer to the deletion of a conversation."""

    id: str
    object: str = "conversation.deleted"
    deleted: bool = True


class ConversationRequest(msgspec.Struct):
    """Body of POST /v1/conversations."""

    items: list[msgspec.Raw] | None = None
    metadata: dict[str, str] | None = None


class ConversationUpdate(msgspec.Struct):
    """Body of POST /v1/conversations/NAME."""

    metadata: dict[str, str] | None


class ItemsRequest(msgspec.Struct):
    """Body of POST /v1/conversations/NAME/items."""

    items: list[msgspec.Raw]


async def create(state: AppState, http: Request, body: ConversationRequest) -> ConversationObject:
    """Create a conversation, with its first items."""
    limits = state.models.limits
    if not limits.max_stored:
        raise NoRoute("this server stores no conversations (--limit max_stored=0)")
    check_metadata(body.metadata)
    items = _to_new(body.items) if body.items else []
    owner = owner_of(http)
    return _to_object(await state.conversations.create(owner, body.metadata or {}, items, limits))


async def get(state: AppState, http: Request) -> ConversationObject:
    """Return a conversation."""
    return _to_object(await state.conversations.find(*_key(http)))


async def update(state: AppState, http: Request, body: ConversationUpdate) -> ConversationObject:
    """Replace the metadata of a conversation."""
    check_metadata(body.metadata)
    return _to_object(await state.conversations.update(*_key(http), body.metadata or {}))


async def delete(state: AppState, http: Request) -> ConversationDeleted:
    """Delete a conversation and its items; responses that were made in it remain."""
    await state.conversations.remove(*_key(http))
    return ConversationDeleted(_key(http)[1])


async def add_items(state: AppState, http: Request, body: ItemsRequest) -> InputItems:
    """Add items to a conversation."""
    items = _to_new(body.items)
    with _held(state, *_key(http)):
        added = await state.conversations.add(*_key(http), items, state.models.limits)
    shown = [to_item(http, *item) for item in enumerate(added)]
    return InputItems("list", shown, False, shown[0]["id"], shown[-1]["id"])


async def list_items(state: AppState, http: Request) -> InputItems:
    """Return a page of the items of a conversation."""
    return to_page(http, await state.conversations.items(*_key(http)))


async def get_item(state: AppState, http: Request) -> Object:
    """Return an item of a conversation."""
    return to_item(http, 0, await state.conversations.item(*_key(http), http.path_params["item"]))


async def delete_item(state: AppState, http: Request) -> ConversationObject:
    """Delete an item of a conversation."""
    with _held(state, *_key(http)):
        record = await state.conversations.remove_item(*_key(http), http.path_params["item"])
    return _to_object(record)


async def items_before(state: AppState, http: Request, body: ResponseRequest) -> tuple[bytes, ...]:
    """Return the items before the input: of `conversation`, or of `previous_response_id`.

    Raises NoRoute for an unknown conversation, and RefusedField.
    """
    name = name_of(body)
    if name is None:
        return await conversation_before(state, http, body.previous_response_id)
    if body.previous_response_id is not None:
        problem = "is set beside conversation, expected one of the two"
        raise InvalidField("previous_response_id", problem)
    items = await state.conversations.items(owner_of(http), name)
    await check_size(state, "conversation", (*items, *to_items(body.input)))
    return items


@contextmanager
def held(state: AppState, http: Request, body: ResponseRequest) -> Iterator[None]:
    """Hold the conversation of a response, so that no other request adds to it meanwhile.

    Raises Conflict.
    """
    name = name_of(body)
    if name is None:
        yield
        return
    with _held(state, owner_of(http), name):
        yield


def add_turn(
    state: AppState, http: Request, body: ResponseRequest, response: OpenAIResponse
) -> None:
    """Add the input and the output of a complete response to its conversation."""
    name = name_of(body)
    if name is not None:
        output = [msgspec.Raw(msgspec.json.encode(item)) for item in response.output]
        raw_items = [*map(msgspec.Raw, to_items(body.input)), *output]
        items = [item for raw in raw_items if (item := _to_item(raw))]
        state.conversations.post(owner_of(http), name, items, state.models.limits)


@contextmanager
def _held(state: AppState, owner: str, name: str) -> Iterator[None]:
    key = owner, name
    if key in state.held:
        raise Conflict(
            f"another request is adding to the conversation {name!r}: wait for its end, and "
            "send this one again"
        )
    state.held.add(key)
    try:
        yield
    finally:
        state.held.discard(key)


def _to_new(raw_items: Sequence[msgspec.Raw]) -> list[NewItem]:
    """Return items of a request to be added, once they are known to be right."""
    try:
        to_messages([*raw_items], None)
    except InvalidField as error:
        raise error.renamed(error.field.replace("input", "items", 1)) from None
    return [item for raw in raw_items if (item := _to_item(raw))]


def _to_item(raw: msgspec.Raw) -> NewItem | None:
    """Return an item to be added; None for a reference to one that the conversation has."""
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    named = msgspec.json.decode(raw, type=ItemType)
    kind = named.type or "message"
    if kind == "item_reference":
        return None
    fields["type"] = msgspec.Raw(msgspec.json.encode(kind))
    is_right = isinstance(named.id, str) and _ID.fullmatch(named.id)
    return NewItem(fields, named.id if is_right else "", _PREFIXES.get(kind, "item"))


def _to_object(record: Record) -> ConversationObject:
    metadata = decode_body(record.body).metadata
    return ConversationObject(id=record.id, created_at=record.created, metadata=metadata)


def _key(http: Request) -> tuple[str, str]:
    return owner_of(http), http.path_params["name"]
