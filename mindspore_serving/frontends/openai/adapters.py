"""vLLM's routes to load and unload LoRA adapters, which are beside OpenAI's."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.service import AdapterControl
from mindspore_serving.errors import Forbidden, InvalidField
from mindspore_serving.frontends.app_state import AppState

_FIELDS = {"name": "lora_name", "path": "lora_path", "model": "model"}


class LoadRequest(msgspec.Struct):
    """Body of /v1/load_lora_adapter.

    `model` is an extension: the base model of the adapter, needed where several models are served.
    """

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    model: str | None = None


class UnloadRequest(msgspec.Struct):
    """Body of /v1/unload_lora_adapter; `lora_int_id` is accepted and ignored."""

    lora_name: str
    lora_int_id: int | None = None


async def load(state: AppState, _: Request, body: LoadRequest) -> Response:
    """Load a LoRA adapter."""
    try:
        await _control(state).load(
            body.lora_name, body.lora_path, body.model or "", in_place=body.load_inplace
        )
    except InvalidField as error:
        raise error.renamed(_FIELDS.get(error.field, error.field)) from None
    return _done(body.lora_name, "added")


async def unload(state: AppState, _: Request, body: UnloadRequest) -> Response:
    """Unload a LoRA adapter."""
    await _control(state).unload(body.lora_name)
    return _done(body.lora_name, "removed")


def _control(state: AppState) -> AdapterControl:
    if state.adapters is None:
        raise Forbidden("this server cannot load or unload LoRA adapters")
    return state.adapters


def _done(name: str, action: str) -> Response:
    text = f"Success: LoRA adapter '{name}' {action} successfully."
    return Response(text, media_type="text/plain")
