"""Rows of the routes for files, batches and conversations."""

from collections.abc import Callable
from functools import partial

from mindspore_serving.frontends.access import is_from_anthropic_client
from mindspore_serving.frontends.openai import batches, conversations, files
from mindspore_serving.frontends.openai.answers import InputItems
from mindspore_serving.frontends.openai.batches import BatchList, BatchObject, BatchRequest
from mindspore_serving.frontends.openai.conversations import (
    ConversationDeleted,
    ConversationObject,
    ConversationRequest,
    ConversationUpdate,
    ItemsRequest,
)
from mindspore_serving.frontends.openai.files import FileDeleted, FileList, FileObject
from mindspore_serving.frontends.operation import JSON, Body
from mindspore_serving.frontends.routes import HttpRoute

_FILES, _BATCHES = "/v1/files", "/v1/batches"
_FILE, _BATCH = f"{_FILES}/{{name}}", f"{_BATCHES}/{{name}}"
_CONVERSATIONS = "/v1/conversations"
_CONVERSATION = f"{_CONVERSATIONS}/{{name}}"
_ITEMS, _ITEM = f"{_CONVERSATION}/items", f"{_CONVERSATION}/items/{{item}}"
_ITEM_OBJECT = {"type": "object", "required": ["id", "type"]}
_BINARY = {"application/octet-stream": {"type": "string", "format": "binary"}}
_QUERY = ("after", "limit", "order")


def rows(route: Callable[..., HttpRoute]) -> tuple[HttpRoute, ...]:
    """Return the rows; `route` has the protocol.

    Anthropic's clients have files of another form, under the same paths.
    """
    route = partial(route, applies=lambda _, scope: not is_from_anthropic_client(scope))
    return (
        route("POST", _FILES, files.upload, "Upload a file for a batch", {JSON: FileObject}),
        route(
            "GET",
            _FILES,
            files.list_files,
            "List the files",
            {JSON: FileList},
            query=(*_QUERY, "purpose"),
        ),
        route("GET", _FILE, files.get_file, "Describe a file", {JSON: FileObject}),
        route("DELETE", _FILE, files.delete_file, "Delete a file", {JSON: FileDeleted}),
        route("GET", f"{_FILE}/content", files.get_content, "Get the bytes of a file", _BINARY),
        route(
            "POST",
            _BATCHES,
            batches.create,
            "Create a batch of requests",
            {JSON: BatchObject},
            body=Body(BatchRequest),
            decodes=True,
        ),
        route(
            "GET",
            _BATCHES,
            batches.list_all,
            "List the batches",
            {JSON: BatchList},
            query=_QUERY,
        ),
        route("GET", _BATCH, batches.get_batch, "Get a batch", {JSON: BatchObject}),
        route("POST", f"{_BATCH}/cancel", batches.cancel, "Cancel a batch", {JSON: BatchObject}),
    )


def conversation_rows(route: Callable[..., HttpRoute]) -> tuple[HttpRoute, ...]:
    """Return the rows; `route` has the protocol."""
    conversation, listed = {JSON: ConversationObject}, {JSON: InputItems}
    post = partial(route, "POST", decodes=True)
    return (
        post(
            _CONVERSATIONS,
            conversations.create,
            "Create a conversation",
            conversation,
            body=Body(ConversationRequest),
        ),
        route("GET", _CONVERSATION, conversations.get, "Get a conversation", conversation),
        post(
            _CONVERSATION,
            conversations.update,
            "Replace the metadata of a conversation",
            conversation,
            body=Body(ConversationUpdate),
        ),
        route(
            "DELETE",
            _CONVERSATION,
            conversations.delete,
            "Delete a conversation",
            {JSON: ConversationDeleted},
        ),
        post(
            _ITEMS,
            conversations.add_items,
            "Add items to a conversation",
            listed,
            body=Body(ItemsRequest),
        ),
        route(
            "GET",
            _ITEMS,
            conversations.list_items,
            "List the items of a conversation",
            listed,
            query=_QUERY,
        ),
        route(
            "GET",
            _ITEM,
            conversations.get_item,
            "Get an item of a conversation",
            {JSON: _ITEM_OBJECT},
        ),
        route(
            "DELETE",
            _ITEM,
            conversations.delete_item,
            "Delete an item of a conversation",
            conversation,
        ),
    )
