"""`declare_llm` records the language model of a servable; a worker loads it."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mindspore_serving.core.declaration import Declaration, LanguageSpec
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.model_card import UPSTREAM
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.hub.resolve import PATH_OPTIONS, resolve_options, resolve_prepared
from mindspore_serving.servable.builtins import NUMBERS
from mindspore_serving.servable.check import check_str
from mindspore_serving.servable.method_builder import current

LANGUAGE = "llm"  # the target of its stages
TRANSCRIPTION = "transcription"  # and of those that transcribe
PARAMETERS = "generate_parameters"  # the built-in stage that collects parameters of a request
DEFAULT_RUNTIME = "auto"
_DEFAULTS = dict.fromkeys((*NUMBERS, "stop", "parameters"), "")  # of optional inputs


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """Declared language model, a stage for `add_stage`; made by `declare_llm`."""

    path: str


def declare_llm(
    path: str = "",
    *,
    runtime: str = DEFAULT_RUNTIME,
    params: SamplingParams | None = None,
    engine: str = "ours",
    engine_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> LanguageModel:
    """Declare the servable's language model in servable_config.py; every worker loads it.

    Clients reach it by every language-model protocol under the servable's name.  As a stage it
    takes a prompt (a str, or an int array of token ids) and, optionally, parameters as a JSON
    object; it gives the text and, optionally, the finish reason ("" while there is more):

        llm = register.declare_llm("model", quantization="int8")

        @register.register_method(output_names=["answer"])
        def ask(question):
            prompt = register.add_stage(to_prompt, question, outputs_count=1)
            return register.add_stage(llm, prompt, outputs_count=1)

    If no method is registered, there is `generate`: inputs `prompt` and, optionally, `max_tokens`,
    `temperature`, `top_k`, `top_p`, `repetition_penalty`, `seed`, `stop` and `parameters` (more,
    as JSON); outputs `text` and `finish_reason`.  A model of speech takes a file of sound in place
    of a prompt, and gives text and language, by `transcribe`.

    Args:
        path: the model's directory or GGUF file, relative to the servable's directory, or its name
            (hf://ORG/NAME).  With the engine "openai" there is none.
        runtime: "auto", or a name of `llm.catalog.RUNTIMES`; see `mindspore-serving docs llm`.
        params: defaults of sampling parameters for stages; None: the model's default sampling.
        engine: "ours", or one of the worker's environment: "vllm", "llama.cpp", "genai"; or
            "openai", another server, whose `url` is in engine_options (`docs engines`).
        engine_options: options of another engine, by its names.
        options: of `EngineConfig`, such as `max_model_len`, `quantization`, `kv_cache_memory`
            (bytes), `num_threads`, `adapters`, `draft` and `mmproj` (relative as `path`).

    Only workers run servable_config.py.  Before one starts, options of a call at the top level are
    read from the file: their names are checked, and their values if all are literals.
    Raises RuntimeError for a wrong argument, a second model, and outside a servable_config.py.
    """
    declaration = current("declare_llm")
    _check_path(path, check_str("engine", engine))
    check_str("runtime", runtime)
    if not isinstance(params, SamplingParams | None):
        raise InvalidInputs(f"params is {type(params).__name__}, expected SamplingParams")
    if declaration.language is not None:
        raise InvalidInputs("declare_llm was called twice: a servable has one language model")
    directory = os.path.dirname(os.path.abspath(sys._getframe(1).f_code.co_filename))
    location = os.path.normpath(os.path.join(directory, resolve_prepared(path, directory)))
    declaration.language = LanguageSpec(
        location,
        runtime,
        _located(options, directory),
        params,
        engine,
        _check_engine_options(engine_options),
    )
    return LanguageModel(location)


def bare_language(location: str, name: str, options: dict[str, Any]) -> Declaration:
    """Return the declaration of the model at `location`, without servable_config.py."""
    engine_config = dict(options)
    runtime = engine_config.pop("runtime", DEFAULT_RUNTIME)
    engine = check_str("engine", engine_config.pop("engine", "ours"))
    engine_options = _check_engine_options(engine_config.pop("engine_options", None))
    spec = LanguageSpec(
        location, runtime, engine_config, engine=engine, engine_options=engine_options
    )
    return Declaration(name, language=spec)


def _located(options: dict[str, Any], directory: str) -> dict[str, Any]:
    """Return `options` with the paths of PATH_OPTIONS relative to `directory`."""
    relative = partial(resolve_prepared, base=directory)
    options = resolve_options(options, relative, resolve_prepared)
    paths = {
        name: os.path.join(directory, check_str(name, options[name]))
        for name in PATH_OPTIONS
        if options.get(name) is not None
    }
    return options | paths


def _check_path(path: object, engine: str) -> None:
    if engine != UPSTREAM:
        check_str("path", path)
    elif path:
        raise InvalidInputs(f"path is {path!r}, expected none: engine {engine!r} has the model")


def _check_engine_options(options: object) -> dict[str, Any]:
    if not isinstance(options, Mapping | None):
        text = f"Parameter 'engine_options' should be a dict, but actually {options!r}"
        raise InvalidInputs(text)
    return dict(options or {})


def add_transcribe(declaration: Declaration) -> None:
    """Add the method `transcribe` to a servable that registers no method."""
    model = Stage(StageKind.LANGUAGE, TRANSCRIPTION, (0, 1), (2, 3), "Model", streams=True)
    declaration.methods["transcribe"] = Method(
        "transcribe",
        ("audio", "parameters"),
        ("text", "language"),
        (model,),
        (2, 3),
        defaults={"parameters": ""},
    )


def add_generate(declaration: Declaration) -> None:
    """Add the method `generate` to a servable that registers no method."""
    inputs = ("prompt", *_DEFAULTS)
    count = len(inputs)
    gather = Stage(StageKind.BUILTIN, PARAMETERS, tuple(range(1, count)), (count,), "Parameters")
    outputs = (count + 1, count + 2)
    model = Stage(StageKind.LANGUAGE, LANGUAGE, (0, count), outputs, "Model", streams=True)
    declaration.methods["generate"] = Method(
        "generate",
        inputs,
        ("text", "finish_reason"),
        (gather, model),
        outputs,
        defaults=_DEFAULTS,
    )
