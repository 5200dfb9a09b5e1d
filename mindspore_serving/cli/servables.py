"""Which servables `serve` is to start, and what there is beside them, with the reason why not."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mindspore_serving import server
from mindspore_serving.cli.options import to_values
from mindspore_serving.cli.preflight import check_interpreter, check_library
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.core.declaration import UPSTREAM
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.upstream.options import check_options
from mindspore_serving.servable import repository, version_policy
from mindspore_serving.servable.discovery import discover
from mindspore_serving.servable.loader import CONFIG_FILE
from mindspore_serving.servable.repository import is_language_model, is_upstream
from mindspore_serving.server.config import merge_config, to_deployment

_NEVER = 1e9  # seconds
DEFAULT_LORAS = 8  # adapters at once, where clients may load them
ADAPTED = (None, "openvino", "torch")  # runtimes that have room for them
_OF_LANGUAGE_MODELS = (
    *("llm_option", "engine", "engine_option", "quantization", "max_model_len", "deterministic"),
    *("prefix_cache_dir", "pinned_prompts", "draft", "adapter", "max_loras"),
)
_SUPERVISION = (
    "max_workers",
    "min_workers",
    "requests_per_worker",
    "scale_down_delay",
    "restart_policy",
    "max_requests",
    "heartbeat_timeout",
    "stage_timeout",
    "step_timeout",
)


def find(settings: ServeSettings) -> tuple[list[server.ServableStartConfig], list[str]]:
    """What is to be started, and why the rest is not: what is no model, or lacks its library.

    Raises ServingError: there is nothing to be started, a setting is wrong, or with `strict`
    anything is not.
    """
    configs, refused = _configs(settings)
    if refused and settings.strict:
        raise StartError(f"Not served, and --strict is given: {'; '.join(refused)}")
    may_come = refused or settings.poll or settings.reload or settings.allow_loading
    if not may_come and not any(_is_language(config) for config in configs):
        _check_no_options(settings)
    return configs, refused


def _is_language(config: server.ServableStartConfig) -> bool:
    path = os.path.join(config.servable_directory, config.servable_name)
    return bool(config.llm_options) or is_language_model(path)


def _check_no_options(settings: ServeSettings) -> None:
    """Raises InvalidInputs for what says something of language models, where there is none."""
    for name in _OF_LANGUAGE_MODELS:
        if any(getattr(part, name) for part in settings.parts()):
            raise InvalidInputs(
                f"--{name.replace('_', '-')} is for language models, and there is none in what is "
                "to be served: leave it out, or add one"
            )


def to_configs(settings: ServeSettings) -> list[server.ServableStartConfig]:
    """One for each servable version found.  Raises ServingError: nothing there, or a wrong
    setting."""
    return _configs(settings)[0]


def to_deployments(configs: list[server.ServableStartConfig]) -> list[Deployment]:
    return [to_deployment(config) for config in merge_config(configs)]


def llm_options(settings: ServeSettings) -> dict[str, Any]:
    """The options of language models.  Raises InvalidInputs for one without a value."""
    names = ("runtime", "quantization", "max_model_len", "engine", "deterministic")
    given = {name: getattr(settings, name) for name in names}
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    for name in ("prefix_cache_dir", "pinned_prompts", "draft"):
        if path := getattr(settings, name):
            options[name] = _absolute(path)
    if settings.prefix_cache_dir:
        options["prefix_cache_disk"] = int(settings.prefix_cache_disk)
    if settings.adapter:
        found = to_values("--adapter", settings.adapter)
        options["adapters"] = {name: str(path) for name, path in found.items()}
    if settings.runtime in ADAPTED:
        room = max(DEFAULT_LORAS, len(settings.adapter)) if settings.allow_lora_loading else 0
        options |= {"max_loras": settings.max_loras or room} if settings.max_loras or room else {}
    own = to_values("--engine-option", settings.engine_option)
    options |= {"engine_options": own} if own else {}
    return options | to_values("--llm-option", settings.llm_option)


def url_of(llm_options: Mapping[str, Any]) -> str:
    """Where the server is that has a language model; "" if that is here."""
    return str(llm_options["engine_options"]["url"]) if is_upstream(llm_options) else ""


def _upstream_options(settings: ServeSettings) -> dict[str, Any]:
    """The options of a language model of another server.  Raises ServingError for a wrong one, or
    for settings that are none of it."""
    if settings.paths:
        raise InvalidInputs("--upstream is in place of PATH: for both, write a configuration file")
    if not settings.name:
        raise InvalidInputs("--upstream needs --name: what clients call its model")
    if settings.engine not in ("", UPSTREAM):
        raise InvalidInputs(f"--engine is {settings.engine!r}, expected none with --upstream")
    own = {"url": settings.upstream, **to_values("--engine-option", settings.engine_option)}
    try:
        check_options(own)
    except StartError as error:
        raise InvalidInputs(str(error)) from None
    most = {"max_model_len": settings.max_model_len} if settings.max_model_len else {}
    return {"engine": UPSTREAM, "engine_options": own, **most}


def _configs(settings: ServeSettings) -> tuple[list[server.ServableStartConfig], list[str]]:
    parts = [_configs_of(part) for part in settings.parts()]
    configs = [config for own, _ in parts for config in own]
    refused = [text for _, own in parts for text in own]
    if not configs and refused:
        raise StartError("; ".join(refused))
    if not configs:
        raise InvalidInputs("nothing is to be served: give a PATH, or 'servables' in --config")
    first: dict[str, str] = {}
    for config in configs:
        name = config.alias or config.servable_name
        where = os.path.join(config.servable_directory, config.servable_name)
        if first.setdefault(name, where) != where:
            raise InvalidInputs(
                f"two servables have the name {name!r}: {first[name]} and {where}; give one "
                "another 'name' in a configuration file"
            )
    return configs, refused


def _configs_of(settings: ServeSettings) -> tuple[list[server.ServableStartConfig], list[str]]:
    """Those of the paths of `settings`, or of its upstream."""
    if settings.upstream:
        options = _upstream_options(settings)
        return [_config(settings, (os.getcwd(), settings.name), 0, options)], []
    at = [discover(path, allow_pickle=settings.allow_pickle) for path in settings.paths]
    found = list(dict.fromkeys(place for one in at for place in one.places))
    if settings.name and len(found) > 1:
        raise InvalidInputs(f"--name is for one servable, {len(found)} were found")
    refused = [text for one in at for text in one.refused]
    for place in list(found):
        try:
            check_interpreter(settings.python, settings.environment)
            if not (settings.python or settings.environment):
                check_library(*place, settings.runtime, settings.backend, settings.engine)
        except StartError as error:
            refused.append(f"{place[1]}: {error}")
            found.remove(place)
    options = llm_options(settings)
    configs = []
    for place in found:
        own = options if is_language_model(os.path.join(*place)) else {}
        versions = _versions(settings.versions, *place)
        configs += [_config(settings, place, version, own) for version in versions]
    return configs, refused


def _config(
    settings: ServeSettings, place: tuple[str, str], version: int, options: dict[str, Any]
) -> server.ServableStartConfig:
    if settings.max_loaded:
        settings = _unloadable(settings)
    workers = settings.num_parallel_workers
    return server.ServableStartConfig(
        *place,
        settings.device_ids or (None if workers or settings.max_workers else 0),
        device_type=settings.device_type,
        num_parallel_workers=workers,
        max_batch_delay_ms=settings.max_batch_delay_ms,
        preferred_batch_size=settings.preferred_batch_size,
        version_number=version,
        **{name: getattr(settings, name) for name in _SUPERVISION},
        node_labels=dict(settings.node_labels),
        alias=settings.name,
        llm_options=options,
        allow_pickle=settings.allow_pickle,
        backend=(settings.backend or "") if _is_bare(*place) else "",
        python=_absolute(settings.python) if os.sep in settings.python else settings.python,
        environment=_absolute(settings.environment),
    )


def _absolute(path: str) -> str:
    """Relative to the working directory, not to the start-up script."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def _is_bare(directory: str, name: str) -> bool:
    """Whether it is a model file without servable_config.py."""
    path = os.path.join(directory, name)
    return not (is_language_model(path) or os.path.isfile(os.path.join(path, CONFIG_FILE)))


def _unloadable(settings: ServeSettings) -> ServeSettings:
    """The same, of servables whose workers all end when others are asked for."""
    most = settings.max_workers or settings.num_parallel_workers or len(settings.device_ids) or 1
    return replace(
        settings,
        max_workers=most,
        min_workers=0,
        num_parallel_workers=0,
        scale_down_delay=settings.scale_down_delay if settings.max_workers else _NEVER,
    )


def _versions(policy: str, directory: str, name: str) -> list[int]:
    """The versions to serve; 0 of a servable without version directories, whose version is 1."""
    found = repository.versions(directory, name)
    chosen = version_policy.choose(policy, found or [1])
    if not chosen:
        raise InvalidInputs(
            f"--versions {policy} leaves none of servable {name}, which has "
            f"{', '.join(map(str, found)) or '1 alone, as it has no version directories'}"
        )
    return chosen if found else [0]
