"""Models: GET /api/tags, /api/ps and /api/version, POST /api/show."""

import hashlib
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from msgspec import UNSET
from msgspec.structs import replace
from starlette.requests import Request

from mindspore_serving import __version__
from mindspore_serving.core.client_models import ClientModel
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import SAMPLING
from mindspore_serving.errors import Forbidden
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.ollama.answers import (
    ListedModel,
    OllamaDetails,
    OllamaModelDetails,
    OllamaModels,
)
from mindspore_serving.frontends.ollama.requests import ModelRequest
from mindspore_serving.frontends.ollama.writing import to_time

TAG = ":latest"
# Clients of Ollama, Open WebUI for one, read three numbers and drop what follows a hyphen.
VERSION = re.sub(r"^(\d+\.\d+\.\d+)\.?(.+)$", r"\1-\2", __version__)
NEVER = "9999-12-31T23:59:59Z"

Object = dict[str, Any]


def refuse_change(_: AppState, http: Request) -> NoReturn:
    """Refuse a request that sends files of models.  Raises Forbidden."""
    raise Forbidden(f"{http.url.path} is not allowed: clients send no files of models")


def list_all(state: AppState) -> OllamaModels:
    """Return the served models, those of clients under their names."""
    return OllamaModels([_listed(model, made) for model, made in _models(state)])


def list_running(state: AppState) -> OllamaModels:
    """Return the served models, which are all loaded."""
    return OllamaModels([_running(model, made) for model, made in _models(state)])


def _models(state: AppState) -> Iterator[tuple[ServedModel, ClientModel | None]]:
    """Iterate over models, with what clients have made of them."""
    served = state.models.listed()
    made = state.client_models.listed() if state.client_models is not None else ()
    servables = {model.servable for model in made if model.digest}
    yield from ((model, None) for model in served if model.name not in servables)
    by_name = {model.name: model for model in served}
    yield from ((by_name[each.servable], each) for each in made if each.servable in by_name)


def served_name(state: AppState, name: str | None) -> str | None:
    """Return the servable that a client of Ollama means by `name`."""
    control = state.client_models
    made = control.find(name) if control is not None and name else None
    return without_tag(name) if made is None else made.servable


async def show(state: AppState, _: Request, body: ModelRequest) -> OllamaModelDetails:
    """Return the details of a model."""
    name = body.model or body.name
    model = state.models.find(served_name(state, name), is_exact=True)
    made = state.client_models.find(name) if state.client_models is not None and name else None
    card = model.card
    return OllamaModelDetails(
        modelfile=f"# {model.name}, served by MindSpore Serving{_modelfile(card, made)}",
        parameters="\n".join([f"{_name(name)} {value}" for name, value in card.defaults.items()]),
        template="",
        details=_details(model),
        model_info=_about(card),
        capabilities=_capabilities(card),
        modified_at=to_time(made.modified if made else card.created),
        license=made.licence if made and made.licence else UNSET,
        system=card.system_message or UNSET,
    )


def _modelfile(card: ModelCard, made: ClientModel | None) -> str:
    """Return the instructions of a model that clients have made."""
    if made is None:
        return ""
    lines = ["", f"FROM {made.source}"]
    lines += [f"PARAMETER {_name(name)} {value}" for name, value in card.defaults.items()]
    if card.system_message:
        lines.append(f'SYSTEM """{card.system_message}"""')
    return "\n".join(lines)


def without_tag(name: str | None) -> str | None:
    """Remove the tag that all models have here from a model's name."""
    return None if name is None else name.removesuffix(TAG)


def _listed(model: ServedModel, made: ClientModel | None) -> ListedModel:
    """Return a model's entry; its digest changes whenever the model is loaded."""
    parts = (model.name, model.version, model.card.created)
    name = _with_tag(made.name if made else model.name)
    digest = made.digest.partition(":")[2] if made else ""
    return ListedModel(
        name=name,
        model=name,
        modified_at=to_time(made.modified if made else model.card.created),
        size=made.size if made else 0,
        digest=digest or hashlib.sha256(repr(parts).encode()).hexdigest(),
        details=_details(model),
    )


def _with_tag(name: str) -> str:
    """Return a model's name with a tag, that of all models unless it has another."""
    return name if ":" in name.rpartition("/")[2] else name + TAG


def _running(model: ServedModel, made: ClientModel | None) -> ListedModel:
    length = model.card.max_model_len
    return replace(_listed(model, made), size_vram=0, expires_at=NEVER, context_length=length)


def _details(model: ServedModel) -> OllamaDetails:
    card = model.card
    return OllamaDetails(
        parent_model=model.servable if model.adapter else "",
        format=card.runtime,
        family=card.architecture,
        families=[card.architecture],
        parameter_size="",
        quantization_level=card.quantization or card.dtype,
    )


def _name(parameter: str) -> str:
    """Return Ollama's name of a sampling parameter."""
    return SAMPLING[parameter].aliases["ollama"] or parameter


def _about(card: ModelCard) -> Object:
    info: Object = {
        "general.architecture": card.architecture,
        f"{card.architecture}.context_length": card.max_model_len,
        f"{card.architecture}.vocab_size": card.vocab_size,
    }
    if card.embedding_size:
        info[f"{card.architecture}.embedding_length"] = card.embedding_size
    return info


def _capabilities(card: ModelCard) -> list[str]:
    capabilities = {
        "completion": card.can_generate,
        "tools": card.can_generate and bool(card.tool_format),
        "vision": card.takes_images,
        "thinking": card.can_generate and bool(card.reasoning_format),
        "embedding": card.can_embed,
    }
    return [name for name, has in capabilities.items() if has]
