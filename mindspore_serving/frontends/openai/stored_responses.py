"""Stored responses: GET and DELETE /v1/responses/NAME, GET /v1/responses/NAME/input_items."""

from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving.errors import InvalidField, NoRoute
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.bodies import check_values
from mindspore_serving.frontends.chat.errors import RefusedField
from mindspore_serving.frontends.chat.fields import show, unexpected
from mindspore_serving.frontends.keys import TENANT
from mindspore_serving.frontends.openai.answers import Deleted, InputItems
from mindspore_serving.frontends.response_store import StoredResponse

BASE = "/v1/responses"
COUNT, COMPACT = f"{BASE}/input_tokens", f"{BASE}/compact"
MOST_ITEMS, DEFAULT_ITEMS = 100, 20  # of an answer

Object = dict[str, Any]


async def show_stored(state: AppState, http: Request) -> Response:
    found = find(state, http)
    if http.query_params.get("stream") == "true":
        problem = "is true, expected false: a stored response is given as a whole"
        raise InvalidField("stream", problem)
    return Response(found.body, media_type="application/json")


async def forget(state: AppState, http: Request) -> Deleted:
    find(state, http)
    state.responses.remove(owner_of(http), _name(http))
    return Deleted(_name(http))


async def refuse_post(state: AppState, http: Request) -> NoReturn:
    find(state, http)
    raise NoRoute(f"there is no route POST {http.url.path}")


async def list_items(state: AppState, http: Request) -> InputItems:
    return _page(http, find(state, http).input)


async def cancel(state: AppState, http: Request) -> NoReturn:
    find(state, http)
    raise InvalidField("", text="only background responses can be cancelled; there are none")


def is_name(_: AppState, scope: Scope) -> bool:
    """Whether a path is of a stored response."""
    return scope["path"] not in (COUNT, COMPACT)


def owner_of(http: Request) -> str:
    """Whose responses a request may see: those of its key, or of all who have none."""
    tenant = http.scope.get(TENANT)
    return "" if tenant is None else tenant.key.secret


def find(state: AppState, http: Request) -> StoredResponse:
    """The response that the path names.  Raises NoRoute."""
    found = state.responses.find(owner_of(http), _name(http))
    if found is None:
        raise NoRoute(f"The response {_name(http)!r} does not exist, or is stored no more")
    return found


async def conversation_before(
    state: AppState, http: Request, name: str | None
) -> tuple[bytes, ...]:
    """The items of the response `name` and of those before it, which together are no more than a
    body may be; none of None.  Raises RefusedField.
    """
    if name is None:
        return ()
    found = state.responses.find(owner_of(http), name)
    field = "previous_response_id"
    if found is None:
        text = f"{field} is {show(name)}, which does not exist, or is stored no more"
        raise RefusedField(field, text, "previous_response_not_found")
    items, limits = found.conversation, state.models.limits
    most = min(state.max_body, limits.max_body)
    if sum(map(len, items)) > most:
        text = f"{field} is of a conversation of over {most} bytes: begin a new one"
        raise RefusedField(field, text, None)
    try:
        await check_values(b",".join(items), limits)
    except InvalidField as error:
        problem = str(error).replace("the body", "its conversation", 1)
        raise RefusedField(field, f"{field}: {problem}: begin a new one", None) from None
    return items


def _name(http: Request) -> str:
    name: str = http.path_params["name"]
    return name


class _Named(msgspec.Struct):
    id: Any = None


def _page(http: Request, given: Sequence[bytes]) -> InputItems:
    """Those that the query asks for, the newest first unless `order` is asc; no others are read."""
    order, after = http.query_params.get("order", "desc"), http.query_params.get("after")
    if order not in ("asc", "desc"):
        raise unexpected("order", order, "asc or desc")
    limit = http.query_params.get("limit", str(DEFAULT_ITEMS))
    if not (limit.isdecimal() and len(limit) <= 3 and 1 <= int(limit) <= MOST_ITEMS):
        raise unexpected("limit", limit, f"1 to {MOST_ITEMS}")
    items = [*enumerate(given)] if order == "asc" else [*enumerate(given)][::-1]
    if after is not None:
        names = [_id_of(http, *item) for item in items]
        if after not in names:
            raise unexpected("after", after, "the id of an item")
        items = items[names.index(after) + 1 :]
    shown = [_to_item(http, *item) for item in items[: int(limit)]]
    ends = (shown[0]["id"], shown[-1]["id"]) if shown else ()
    return InputItems("list", shown, len(items) > len(shown), *ends)


def _id_of(http: Request, place: int, raw: bytes) -> str:
    """Its own, or one for its place."""
    own = msgspec.json.decode(raw, type=_Named).id
    return own if isinstance(own, str) else f"item_{place}_{_name(http).removeprefix('resp_')}"


def _to_item(http: Request, place: int, raw: bytes) -> Object:
    """With an id, a type, a status, and the parts of its content."""
    item: Object = {"status": "completed", **msgspec.json.decode(raw)}
    item["type"] = item.get("type") or "message"
    if item["type"] == "message" and isinstance(item.get("content"), str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        item["content"] = [{"type": kind, "text": item["content"]}]
    return {**item, "id": _id_of(http, place, raw)}
