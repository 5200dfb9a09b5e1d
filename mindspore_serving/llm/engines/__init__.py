"""Which engines there are for language models beside our own, and what each takes.

A row is imported when its engine is asked for, as it may be installed in a worker's environment
alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

from mindspore_serving import extras
from mindspore_serving.core.declaration import UPSTREAM
from mindspore_serving.errors import StartError, did_you_mean
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engines.base import EngineModel, LanguageEngine

OURS = "ours"
GGUF, DIRECTORY = "a GGUF file", "a directory with config.json"


@dataclass(frozen=True, slots=True)
class EngineRow:
    """An engine.

    Args:
        opens: "module:function" below this package.
        takes: the options of `EngineConfig` that it translates; those in ANY are ours.
        library: the module that it needs.
        reads: what models are in.
    """

    opens: str
    takes: frozenset[str]
    library: str
    reads: tuple[str, ...]


ANY = frozenset({
    "max_num_waiting", "max_num_waiting_tokens", "preparation_timeout", "preparation_memory",
    "generation_config", "generic_tools", "unmarked_calls",
})  # fmt: skip
"""The options of what is before an engine, which all have."""

ENGINES: dict[str, EngineRow] = {
    "vllm": EngineRow(
        "vllm_opening:open_engine",
        frozenset({
            "adapters", "block_size", "dtype", "device", "enable_prefix_caching",
            "kv_cache_dtype", "kv_cache_memory", "max_model_len", "max_num_batched_tokens",
            "max_num_seqs", "quantization", "tensor_parallel",
        }),
        "vllm",
        (DIRECTORY,),
    ),
    "llama.cpp": EngineRow(
        "llamacpp:open_engine",
        frozenset({
            "kv_cache_memory", "max_model_len", "max_ngram", "max_num_batched_tokens",
            "max_num_seqs", "min_ngram", "num_speculative_tokens", "num_threads",
        }),
        "llama_cpp",
        (GGUF,),
    ),
    "genai": EngineRow(
        "genai:open_engine",
        frozenset({
            "dtype", "enable_prefix_caching", "kv_cache_memory", "max_model_len",
            "max_num_batched_tokens", "max_num_seqs", "num_threads",
        }),
        "openvino_genai",
        (GGUF, DIRECTORY),
    ),
}  # fmt: skip
NAMES = (OURS, *ENGINES, UPSTREAM)


def open_engine(
    name: str, model: EngineModel, config: EngineConfig, options: Mapping[str, Any]
) -> LanguageEngine:
    """The model in the engine `name`, with `options` of its own.

    Raises StartError: no such engine or its library is missing, or an option that it has not.
    """
    if name == UPSTREAM:
        raise StartError(f"engine {name!r} has no model here: a server alone can have it")
    if name not in ENGINES:
        near = did_you_mean(name, NAMES)
        raise StartError(f"engine is {name!r}, expected one of {', '.join(NAMES)}{near}")
    row = ENGINES[name]
    default = EngineConfig()
    for option in (one.name for one in fields(EngineConfig)):
        is_given = getattr(config, option) != getattr(default, option)
        if is_given and option not in row.takes | ANY:
            accepted = ", ".join(sorted(row.takes | ANY))
            raise StartError(f"engine {name!r} has no option {option}, expected some of {accepted}")
    if (GGUF if is_gguf(model.directory) else DIRECTORY) not in row.reads:
        raise StartError(
            f"engine {name!r} reads {' or '.join(row.reads)}, and {str(model.directory)!r} is none"
        )
    module, _, function = row.opens.partition(":")
    try:
        opener = getattr(import_module(f"{__name__}.{module}"), function)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mindspore_serving"):
            raise
        raise StartError(extras.missing(error, f"engine {name!r}")) from error
    engine: LanguageEngine = opener(model, config, options)
    return engine


def check_options(name: str, given: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raises StartError naming an option that the engine does not know."""
    for option in given:
        if option not in known:
            near = did_you_mean(option, known)
            raise StartError(f"engine {name!r} has no option {option!r} (engine_options){near}")
