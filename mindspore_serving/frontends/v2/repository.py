"""The model-repository extension: index, loading and unloading of models."""

from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins

from mindspore_serving.core.service import ModelControl, ModelState
from mindspore_serving.errors import InvalidInputs, ServingError, Unsupported
from mindspore_serving.frontends.v2.answers import RepositoryModel
from mindspore_serving.frontends.v2.descriptions import to_config
from mindspore_serving.frontends.v2.load_config import to_changes
from mindspore_serving.frontends.v2.models import V2Models


async def index(
    repository: ModelControl | None, models: V2Models, *, only_ready: bool
) -> list[RepositoryModel]:
    """List the versions of servables, and other methods of loaded ones."""
    states = [] if repository is None else await repository.index()
    return [
        RepositoryModel(name, str(state.version or ""), _state_of(state), state.reason)
        for state in states
        if state.is_ready or not only_ready
        for name in models.names_of(state.name, state.version)
    ]


async def load(
    repository: ModelControl | None, models: V2Models, name: str, parameters: Mapping[str, Any]
) -> None:
    """Load a servable.  Raises ServingError.

    The parameter `reload`, an extension, loads it even if its files have not changed.  `config` has
    options that apply until the servable is loaded again.
    """
    files = next((key for key in parameters if key.startswith("file:")), None)
    if files is not None:
        raise Unsupported(f"load of '{name[:256]}': '{files[:64]}': clients cannot send files")
    is_forced = parameters.get("reload", False)
    if not isinstance(is_forced, bool):
        raise InvalidInputs(f"parameter 'reload' is {is_forced!r:.100}, expected true or false")
    config = parameters.get("config")
    changes = {} if config is None else to_changes(config, _shown(models, name))
    await _checked(repository).load(name, is_forced=is_forced, changes=changes)


def _shown(models: V2Models, name: str) -> Mapping[str, Any]:
    """Return the configuration of a model; only its name if it is not loaded."""
    try:
        config: dict[str, Any] = to_builtins(to_config(models.find(name)))
        return config
    except ServingError:
        return {"name": name}


async def unload(repository: ModelControl | None, name: str) -> None:
    """Unload a servable.  Raises ServingError."""
    await _checked(repository).unload(name)


def _checked(repository: ModelControl | None) -> ModelControl:
    if repository is None:
        raise Unsupported("loading and unloading models is not available")
    return repository


def _state_of(state: ModelState) -> str:
    if state.is_ready:
        return "READY"
    return "LOADING" if state.is_loading else "UNAVAILABLE"
