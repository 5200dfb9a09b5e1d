"""vLLM's routes to load and unload LoRA adapters, which are beside OpenAI's."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.service import AdapterControl
from mindspore_serving.errors import Forbidden, InvalidField
from mindspore_serving.frontends.app_state import AppState

_FIELDS = {"name": "lora_name", "path": "lora_path", "model": "model"}


class LoadRequest(msgspec.Struct):
    """`model` is our own: whose adapter it is, where there are several models."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    model: str | None = None


class UnloadRequest(msgspec.Struct):
    """`lora_int_id` means nothing here."""

    lora_name: str
    lora_int_id: int | None = None


async def load(state: AppState, _: Request, body: LoadRequest) -> Response:
    try:
        await _control(state).load(
            body.lora_name, body.lora_path, body.model or "", in_place=body.load_inplace
        )
    except InvalidField as error:
        raise error.renamed(_FIELDS.get(error.field, error.field)) from None
    return _done(body.lora_name, "added")


async def unload(state: AppState, _: Request, body: UnloadRequest) -> Response:
    await _control(state).unload(body.lora_name)
    return _done(body.lora_name, "removed")


def _control(state: AppState) -> AdapterControl:
    if state.adapters is None:
        raise Forbidden("this server has no LoRA adapters that come and go")
    return state.adapters


def _done(name: str, what: str) -> Response:
    text = f"Success: LoRA adapter '{name}' {what} successfully."
    return Response(text, media_type="text/plain")
