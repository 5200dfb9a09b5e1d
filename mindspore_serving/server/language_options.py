"""Checks of the options of language models and task models, before a process is started.

Checks that need the model's files, or the library of another engine, are left to the worker.
"""

from collections.abc import Mapping
from typing import Any

from mindspore_serving.core.model_card import UPSTREAM
from mindspore_serving.core.tasks import TASK_OPTIONS, TaskOptions, task_of
from mindspore_serving.errors import InvalidInputs, ServingError, StartError
from mindspore_serving.hub.resolve import resolve
from mindspore_serving.llm.catalog import AUTO, OURS, RUNTIMES, TRANSFORMERS
from mindspore_serving.llm.config import OPTIONS
from mindspore_serving.llm.options import (
    OF_VOICES_ALONE,
    check_engine,
    check_names,
    check_runtime,
    check_voices,
    make_config,
)
from mindspore_serving.llm.upstream.options import read_model_options, read_options
from mindspore_serving.servable.declared_llm import declared_options, declared_paths
from mindspore_serving.servable.repository import is_upstream, read_model_config

_RUNTIME_OPTIONS = ("runtime", "engine", "engine_options")


def check_language_options(options: Mapping[str, Any]) -> None:
    """Check names, types and values of options, also against the engine and the runtime.

    Raises InvalidInputs.
    """
    try:
        _check(options)
    except StartError as error:
        raise InvalidInputs(str(error)) from None


def check_task_options(path: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidInputs for options of tasks if the model in `path` has no task."""
    task_options = [name for name in options if name in TASK_OPTIONS and name not in OPTIONS]
    if not task_options or is_upstream(options):
        return
    names = read_model_config(path).get("architectures")
    if not task_of(str(names[0]) if isinstance(names, list) and names else ""):
        raise InvalidInputs(
            f"{task_options[0]!r} is an option of models that do not generate, but the model in "
            f"{path!r} does: leave it out"
        )


def check_declared_options(path: str) -> None:
    """Check the options of `declare_llm` in the servable_config.py at `path`, which is not run.

    Names are checked, and values if all of them are literals; the worker checks the rest.  Models
    that are named, as hf://ORG/NAME, are downloaded before a worker needs them.  Raises StartError
    with the line.
    """
    for call in declared_options(path):
        try:
            check_names(call.names, (*OPTIONS, *_RUNTIME_OPTIONS))
            if call.is_literal:
                _check(call.literals)
        except ServingError as error:
            raise StartError(f"{path}, line {call.line}: {error}") from None
    for name, base in declared_paths(path):
        resolve(name, base=base)


def _check(options: Mapping[str, Any]) -> None:
    check_names(options, (*OPTIONS, *TASK_OPTIONS, *_RUNTIME_OPTIONS))
    engine, theirs = options.get("engine", OURS), options.get("engine_options") or {}
    if not isinstance(theirs, Mapping):
        raise InvalidInputs(f"engine_options is {theirs!r}, expected names with values")
    rest = {name: value for name, value in options.items() if name not in _RUNTIME_OPTIONS}
    if engine == UPSTREAM:
        read_options(theirs)
        read_model_options(rest)
        return
    TaskOptions(**{name: value for name, value in rest.items() if name in TASK_OPTIONS})
    config = make_config({name: value for name, value in rest.items() if name in OPTIONS})
    check_engine(config, engine, theirs)
    if config.is_set(OF_VOICES_ALONE):
        check_voices(config)
    elif engine == OURS:
        check_runtime(config, options.get("runtime", AUTO), (*RUNTIMES, TRANSFORMERS))
