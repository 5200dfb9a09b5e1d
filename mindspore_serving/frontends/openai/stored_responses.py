"""Stored responses: GET and DELETE /v1/responses/NAME, GET /v1/responses/NAME/input_items."""

from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving.errors import Conflict, InvalidField, NoRoute
from mindspore_serving.frontends import keys
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.bodies import check_values
from mindspore_serving.frontends.chat.errors import RefusedField
from mindspore_serving.frontends.chat.fields import show, unexpected
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.openai import background
from mindspore_serving.frontends.openai.answers import Deleted, InputItems
from mindspore_serving.frontends.response_store import StoredResponse
from mindspore_serving.frontends.sse import EventStream

BASE = "/v1/responses"
COUNT, COMPACT = f"{BASE}/input_tokens", f"{BASE}/compact"
MAX_ITEMS, DEFAULT_ITEMS = 100, 20  # of an answer

Object = dict[str, Any]


async def get_stored(state: AppState, http: Request) -> Response:
    """Return a stored response."""
    stored, running = await find(state, http), background.find(state, http)
    if http.query_params.get("stream") == "true":
        if running is None:
            _check_ended(stored)
        events = background.resume(running, stored, background.starting_after(http))
        return EventStream(events)
    if running is not None:
        return to_json(running.to_object())
    return Response(stored.body, media_type="application/json")


async def delete(state: AppState, http: Request) -> Deleted:
    """Delete a stored response."""
    await find(state, http)
    await background.stop(state, http)
    _check_ended(await find(state, http))
    await state.responses.remove(_name(http))
    return Deleted(_name(http))


async def refuse_post(state: AppState, http: Request) -> NoReturn:
    """Refuse a POST to a stored response: no such route."""
    await find(state, http)
    raise NoRoute(f"there is no route POST {http.url.path}")


async def list_items(state: AppState, http: Request) -> InputItems:
    """Return a page of the input items of a stored response."""
    return to_page(http, (await find(state, http)).input)


async def cancel(state: AppState, http: Request) -> Response:
    """Cancel a response that runs in the background; one that has ended remains as it is."""
    await find(state, http)
    await background.stop(state, http)
    stored = await find(state, http)
    if not msgspec.json.decode(stored.body, type=_Background).background:
        raise InvalidField("", text="only background responses can be cancelled")
    _check_ended(stored)
    return Response(stored.body, media_type="application/json")


def _check_ended(stored: StoredResponse) -> None:
    """Raise Conflict if a response, which does not run here, runs at another server."""
    if msgspec.json.decode(stored.body, type=_Background).status in ("queued", "in_progress"):
        raise Conflict(
            "another server of the same state computes this response: stream, cancel or delete it "
            "there, or wait for its end"
        )


def is_stored_response(_: AppState, scope: Scope) -> bool:
    """Return whether a path names a stored response."""
    return scope["path"] not in (COUNT, COMPACT)


def owner_of(http: Request) -> str:
    """Return whose responses a request may see."""
    return keys.owner_of(http.scope)


async def find(state: AppState, http: Request) -> StoredResponse:
    """Return the stored response that the path names.

    Raises NoRoute.
    """
    response = await state.responses.find(owner_of(http), _name(http))
    if response is None:
        raise NoRoute(f"The response {_name(http)!r} does not exist or is no longer stored")
    return response


async def conversation_before(
    state: AppState, http: Request, name: str | None
) -> tuple[bytes, ...]:
    """Return the items of the response `name` and of the responses before it, none without a name.

    Together they are no larger than a body may be. Raises RefusedField.
    """
    if name is None:
        return ()
    response = await state.responses.find(owner_of(http), name)
    field = "previous_response_id"
    if response is None:
        text = f"{field} is {show(name)}, which does not exist or is no longer stored"
        raise RefusedField(field, text, "previous_response_not_found")
    await check_size(state, field, response.conversation)
    return response.conversation


async def check_size(state: AppState, field: str, items: Sequence[bytes]) -> None:
    """Check that the items of the conversation that `field` names are no larger than a body.

    Raises RefusedField.
    """
    limits = state.models.limits
    max_bytes = min(state.max_body, limits.max_body)
    if sum(map(len, items)) > max_bytes:
        text = f"{field} belongs to a conversation of over {max_bytes} bytes: start a new one"
        raise RefusedField(field, text, None)
    try:
        await check_values(b",".join(items), limits)
    except InvalidField as error:
        problem = str(error).replace("the body", "its conversation", 1)
        raise RefusedField(field, f"{field}: {problem}: start a new one", None) from None


def _name(http: Request) -> str:
    name: str = http.path_params["name"]
    return name


class _Background(msgspec.Struct):
    background: bool = False
    status: str = ""


class _Named(msgspec.Struct):
    id: Any = None


def to_page(http: Request, raw_items: Sequence[bytes]) -> InputItems:
    """Return the items that the query selects, newest first unless `order` is asc.

    Only the items of the page are decoded in full.
    """
    order, after = http.query_params.get("order", "desc"), http.query_params.get("after")
    if order not in ("asc", "desc"):
        raise unexpected("order", order, "asc or desc")
    limit = http.query_params.get("limit", str(DEFAULT_ITEMS))
    if not (limit.isdecimal() and len(limit) <= 3 and 1 <= int(limit) <= MAX_ITEMS):
        raise unexpected("limit", limit, f"1 to {MAX_ITEMS}")
    items = [*enumerate(raw_items)] if order == "asc" else [*enumerate(raw_items)][::-1]
    if after is not None:
        names = [_id_of(http, *item) for item in items]
        if after not in names:
            raise unexpected("after", after, "the id of an item")
        items = items[names.index(after) + 1 :]
    shown = [to_item(http, *item) for item in items[: int(limit)]]
    ends = (shown[0]["id"], shown[-1]["id"]) if shown else ()
    return InputItems("list", shown, len(items) > len(shown), *ends)


def _id_of(http: Request, index: int, raw: bytes) -> str:
    """Return the id of an item, one made of its index if it has none."""
    item_id = msgspec.json.decode(raw, type=_Named).id
    return (
        item_id if isinstance(item_id, str) else f"item_{index}_{_name(http).removeprefix('resp_')}"
    )


def to_item(http: Request, index: int, raw: bytes) -> Object:
    """Return an item with an id, a type, a status and the parts of its content."""
    item: Object = {"status": "completed", **msgspec.json.decode(raw)}
    item["type"] = item.get("type") or "message"
    if item["type"] == "message" and isinstance(item.get("content"), str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        item["content"] = [{"type": kind, "text": item["content"]}]
    return {**item, "id": _id_of(http, index, raw)}
