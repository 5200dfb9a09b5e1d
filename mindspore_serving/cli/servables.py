"""Servables that `serve` starts, and those that it refuses, with the reason."""

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from mindspore_serving import server
from mindspore_serving.cli import networks
from mindspore_serving.cli.options import SERVE, flag, to_values
from mindspore_serving.cli.preflight import check_interpreter, check_library
from mindspore_serving.cli.settings import ENGINE, LANGUAGE, ServableSettings, ServeSettings
from mindspore_serving.core.deployment import Deployment, RefusedServable
from mindspore_serving.core.model_card import UPSTREAM
from mindspore_serving.core.params import OptionRow, rows_of
from mindspore_serving.core.servable_options import SERVABLE
from mindspore_serving.errors import InvalidInputs, ServingError, StartError
from mindspore_serving.hub.resolve import OFFLINE, PATH_OPTIONS, resolve
from mindspore_serving.llm.config import OPTIONS
from mindspore_serving.llm.upstream.options import check_options
from mindspore_serving.llm.upstream.targets import DISCOVERED
from mindspore_serving.servable import bare, repository, version_policy
from mindspore_serving.servable.check import as_int_tuple
from mindspore_serving.servable.discovery import discover
from mindspore_serving.servable.foreign import formats
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.language import DEFAULT_RUNTIME
from mindspore_serving.servable.loader import CONFIG_FILE
from mindspore_serving.servable.repository import is_language_model, is_upstream
from mindspore_serving.server.config import to_deployments
from mindspore_serving.server.language_options import check_declared_options

_NEVER = 1e9  # seconds
_OF_MODEL_FILES = ("backend", "batch_axis", "states")  # else arguments of declare_model
DEFAULT_LORAS = 8  # max adapters at once, if clients may load them
_LANGUAGE_ROWS = {n: row for n, row in rows_of(ServableSettings).items() if row.group == LANGUAGE}


def find(settings: ServeSettings) -> tuple[list[server.ServableStartConfig], list[RefusedServable]]:
    """Return the servables to start, and the refused ones: no model, or a missing library.

    Raises ServingError if there is nothing to start, a path does not exist, a setting is wrong, or
    with `strict` if any servable is refused.
    """
    if settings.offline:
        os.environ[OFFLINE] = "1"  # of workers, too
    configs, refused = _configs(settings)
    if refused and settings.strict:
        raise StartError(f"Not served, and --strict is given: {_joined(refused)}")
    can_appear = refused or settings.poll or settings.reload or settings.allow_loading
    if not can_appear and not any(_is_language(config) for config in configs):
        _check_no_options(settings)
    if not can_appear and not any(_is_bare_model(config) or config.network for config in configs):
        _check_no_model_options(settings)
    return configs, refused


def _is_language(config: server.ServableStartConfig) -> bool:
    path = os.path.join(config.servable_directory, config.servable_name)
    return bool(config.llm_options) or is_language_model(path)


def _check_no_options(settings: ServeSettings) -> None:
    """Raise InvalidInputs for an option of language models if none is served."""
    for name, row in _LANGUAGE_ROWS.items():
        if name != "runtime" and any(_is_set(part, name) for part in settings.parts()):
            raise InvalidInputs(
                f"{flag(row)} is for language models, but none is served: leave it out, or add one"
            )


def _is_bare_model(config: server.ServableStartConfig) -> bool:
    return not config.llm_options and _is_bare(config.servable_directory, config.servable_name)


def _check_no_model_options(settings: ServeSettings) -> None:
    """Raise InvalidInputs for an option of model files if none is served without configuration."""
    for part in settings.parts():
        for name in _OF_MODEL_FILES:
            if getattr(part, name):
                option = "--" + name.replace("_", "-")
                raise InvalidInputs(
                    f"{option} is for model files without a {CONFIG_FILE}, but none is served: "
                    f"leave it out, or set it by declare_model(..., {name}=...)"
                )


def _is_set(settings: ServeSettings, name: str) -> bool:
    """Return whether an option of language models has another value than its default."""
    return bool(getattr(settings, name) != _LANGUAGE_ROWS[name].default)


def rediscover(settings: ServeSettings) -> list[Deployment | RefusedServable]:
    """Find the servables again, to start and refused ones.

    Raises ServingError if there are none, or for a wrong setting.
    """
    configs, refused = _configs(settings)
    return [*to_deployments(configs), *refused]


def llm_options(settings: ServeSettings) -> dict[str, Any]:
    """Return the options of language models by the names of `EngineConfig`.

    Raises InvalidInputs for an option without a value, and for one that is there twice.
    """
    options: dict[str, Any] = {}
    for name, row in _LANGUAGE_ROWS.items():
        if (engine_name := row.name_in(ENGINE)) and _is_set(settings, name):
            options[engine_name] = _engine_value(row, getattr(settings, name))
    runtime = settings.runtime or DEFAULT_RUNTIME
    if OPTIONS["max_loras"].name_in(runtime) is None:
        options.pop("max_loras", None)
    elif settings.lora_directories:
        options.setdefault("max_loras", max(DEFAULT_LORAS, len(settings.adapter)))
    more = to_values("--llm-option", settings.llm_option)
    for name, row in _LANGUAGE_ROWS.items():
        if name in more and _is_set(settings, name):
            raise InvalidInputs(f"--llm-option has {name}, which {flag(row)} has too")
    return options | more


def _engine_value(row: OptionRow, value: Any) -> Any:
    """Convert the value of an option of the command line to that of `EngineConfig`."""
    if row.name in PATH_OPTIONS:
        return _absolute(resolve(value))
    if row.is_path:
        return _absolute(value)
    if row.kind == list[str]:
        values = to_values(flag(row), value)
        is_scalar = row.metavar == "NAME=VALUE"
        return values if is_scalar else {name: resolve(str(path)) for name, path in values.items()}
    return int(value) if isinstance(value, float) else value


def url_of(llm_options: Mapping[str, Any]) -> str:
    """Return the URLs of the servers that have a language model; "" if this server has it."""
    if not is_upstream(llm_options):
        return ""
    options = llm_options["engine_options"]
    return ", ".join(options.get("upstreams") or (str(options["url"]),))


def _upstream_options(settings: ServeSettings) -> dict[str, Any]:
    """Return the options of a language model of another server.

    Raises ServingError for a wrong option, or for settings that do not apply to it.
    """
    if settings.paths:
        raise InvalidInputs("--upstream replaces PATH: for both, write a configuration file")
    if not settings.name:
        raise InvalidInputs("--upstream needs --name, the name of the model for clients")
    if settings.engine not in ("", UPSTREAM):
        raise InvalidInputs(f"--engine is {settings.engine!r}, expected none with --upstream")
    is_plain = len(settings.upstream) == 1 and "," not in settings.upstream[0]
    is_plain = is_plain and settings.upstream[0].partition("://")[0] not in DISCOVERED
    engine_options = {
        **({"url": settings.upstream[0]} if is_plain else {"upstreams": [*settings.upstream]}),
        **to_values("--engine-option", settings.engine_option),
    }
    try:
        check_options(engine_options)
    except StartError as error:
        raise InvalidInputs(str(error)) from None
    max_length = {"max_model_len": settings.max_model_len} if settings.max_model_len else {}
    return {"engine": UPSTREAM, "engine_options": engine_options, **max_length}


def _joined(refused: list[RefusedServable]) -> str:
    return "; ".join(map(str, refused))


def _configs(
    settings: ServeSettings,
) -> tuple[list[server.ServableStartConfig], list[RefusedServable]]:
    parts = [_configs_of(part) for part in settings.parts()]
    configs = [config for part, _ in parts for config in part]
    refused = [servable for _, part in parts for servable in part]
    if not configs and refused:
        raise StartError(_joined(refused))
    if not configs and not settings.pull_prefixes:  # else clients bring models
        raise InvalidInputs("nothing to serve: give a PATH, or 'servables' in --config")
    first: dict[str, str] = {}
    for config in configs:
        name = config.alias or config.servable_name
        path = os.path.join(config.servable_directory, config.servable_name)
        if first.setdefault(name, path) != path:
            raise InvalidInputs(
                f"two servables have the name {name!r}: {first[name]} and {path}; set another "
                "'name' in a configuration file"
            )
    return configs, refused


def _configs_of(
    settings: ServeSettings,
) -> tuple[list[server.ServableStartConfig], list[RefusedServable]]:
    """Return the servables of the paths of `settings`, or of its upstream."""
    if settings.upstream:
        options = _upstream_options(settings)
        return [_config(settings, (os.getcwd(), settings.name), 0, options)], []
    network_configs = [_network_config(settings, path) for path in networks.of(settings)]
    settings = networks.without(settings)
    locations, refused = _discover(settings)
    if settings.name and (count := len(locations) + len(network_configs)) > 1:
        raise InvalidInputs(f"--name is for one servable, {count} were found")
    options = llm_options(settings)
    configs = network_configs
    for location in locations:
        model_options = options if is_language_model(os.path.join(*location)) else {}
        try:
            _check_library(settings, location)
            check_declared_options(os.path.join(*location, CONFIG_FILE))
            described = formats.read(os.path.join(*location))
            policy = _policy(settings, described)
            versions = _versions(policy, *location, is_alone=len(locations) == 1)
        except StartError as error:
            refused.append(RefusedServable(_name(settings, *location), str(error)))
            continue
        chosen = replace(settings, **formats.complete(described, asdict(settings)))
        configs += [_config(chosen, location, version, model_options) for version in versions]
    return configs, refused


def _policy(settings: ServeSettings, described: ForeignModel | None) -> str:
    """Return the version policy: that of the description, unless the operator sets another."""
    default = rows_of(ServableSettings)["versions"].default
    is_set = settings.versions != default
    return settings.versions if is_set or described is None else described.versions or default


def _discover(settings: ServeSettings) -> tuple[list[tuple[str, str]], list[RefusedServable]]:
    """Return the (directory, name) of servables at the paths, and what is none.

    Raises StartError for a path that does not exist, which is a typing mistake.
    """
    locations: dict[tuple[str, str], None] = {}
    refused = []
    for argument in settings.paths:
        path = resolve(argument, offline=settings.offline or None)
        try:
            discovered = discover(path, allow_pickle=settings.allow_pickle)
        except ServingError as error:
            if not os.path.exists(path):
                raise
            location = os.path.split(os.path.abspath(path))
            refused.append(RefusedServable(_name(settings, *location), str(error)))
        else:
            locations |= dict.fromkeys(discovered.servables)
            refused += discovered.refused
    return list(locations), refused


def _name(settings: ServeSettings, directory: str, name: str) -> str:
    """Return the name of a servable for clients, served or refused."""
    return settings.name or bare.file_alias(directory, name) or name


def _check_library(settings: ServeSettings, location: tuple[str, str]) -> None:
    check_interpreter(settings.python, settings.environment)
    if not (settings.python or settings.environment):
        check_library(*location, settings.runtime, settings.backend, settings.engine)


def _config(
    settings: ServeSettings, location: tuple[str, str], version: int, options: dict[str, Any]
) -> server.ServableStartConfig:
    if settings.max_loaded:
        settings = _unloadable(settings)
    values = {name: getattr(settings, name) for name, row in SERVABLE.items() if row.name_in(SERVE)}
    workers = settings.num_parallel_workers or settings.max_workers or settings.roles
    is_bare = _is_bare(*location)
    values |= {
        "device_ids": settings.device_ids or (None if workers else 0),
        "backend": settings.backend if is_bare else "",
        "with_batch_dim": settings.with_batch_dim if is_bare else None,
        "batch_axis": settings.batch_axis if is_bare else None,
        "states": settings.states if is_bare else None,
        "python": _absolute(settings.python) if os.sep in settings.python else settings.python,
        "environment": _absolute(settings.environment),
        "network": settings.network,
    }
    return server.ServableStartConfig(
        *location, version_number=version, llm_options=options, **values
    )


def _network_config(settings: ServeSettings, path: str) -> server.ServableStartConfig:
    """Return the configuration of a network in code, as net.py:Net."""
    location, name = networks.locate(path)
    weights = networks.check_file(settings.weights) if settings.weights else ""
    check_interpreter(settings.python, settings.environment)
    chosen = replace(settings, network=name, weights=weights)
    return _config(chosen, location, 0, {})


def _absolute(path: str) -> str:
    """Make a path absolute, relative to the working directory, not to the start-up script."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def _is_bare(directory: str, name: str) -> bool:
    """Return whether this is a model file without servable_config.py."""
    path = os.path.join(directory, name)
    return not (is_language_model(path) or os.path.isfile(os.path.join(path, CONFIG_FILE)))


def _unloadable(settings: ServeSettings) -> ServeSettings:
    """Return `settings` for servables that lose all workers when others are requested."""
    max_workers = (
        settings.max_workers
        or settings.num_parallel_workers
        or len(as_int_tuple("device_ids", settings.device_ids or ()))
        or 1
    )
    return replace(
        settings,
        max_workers=max_workers,
        min_workers=0,
        num_parallel_workers=0,
        scale_down_delay=settings.scale_down_delay if settings.max_workers else _NEVER,
    )


def _versions(policy: str, directory: str, name: str, *, is_alone: bool) -> list[int]:
    """Return the versions to serve; 0 for version 1 of a servable without version directories.

    Raises InvalidInputs if none is left of the only servable, StartError of one of several.
    """
    available = repository.versions(directory, name)
    chosen = version_policy.choose(policy, available or [1])
    if not chosen:
        text = (
            f"--versions {policy} selects none of servable {name}, which has "
            f"{', '.join(map(str, available)) or 'only 1, as it has no version directories'}"
        )
        raise InvalidInputs(text) if is_alone else StartError(text)
    return chosen if available else [0]
