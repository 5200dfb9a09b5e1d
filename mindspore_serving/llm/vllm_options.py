"""Options of language models as vLLM's, by its names.  Imports nothing of vLLM."""

import json
from collections.abc import Mapping
from typing import Any

from mindspore_serving.core.sampling_params import MAX_LOGPROBS
from mindspore_serving.llm.config import EngineConfig

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
NAMES = {
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "kv_cache_memory": "kv_cache_memory_bytes",
    "block_size": "block_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization",
    "tensor_parallel": "tensor_parallel_size",
    "expert_parallel": "enable_expert_parallel",
    "enable_prefix_caching": "enable_prefix_caching",
}
"""Our options that vLLM has as well, with its names."""
VARIABLES: Mapping[str, str] = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Environment variables with which vLLM calls no other machine, unless the operator sets them."""
_ALWAYS = ("max_num_seqs", "enable_prefix_caching")  # passed even if they have their defaults
_DEFAULTS = EngineConfig()


def make_arguments(config: EngineConfig) -> dict[str, Any]:
    """Return the options of `config` as arguments of vLLM."""
    arguments: dict[str, Any] = {
        "scheduling_policy": "priority",
        "max_logprobs": MAX_LOGPROBS,
        "generation_config": "vllm",  # ours are applied before
        "dtype": DTYPES.get(config.dtype, config.dtype),
    }
    for name, vllm_name in NAMES.items():
        if name in _ALWAYS or getattr(config, name) != getattr(_DEFAULTS, name):
            arguments[vllm_name] = getattr(config, name)
    return arguments


def to_words(arguments: Mapping[str, Any]) -> list[str]:
    """Return `arguments` as words of vLLM's command line."""
    words: list[str] = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list | tuple):
            words += [f"--{option}", *map(_to_word, value)]
        else:
            words += [f"--{option}", _to_word(value)]
    return words


def _to_word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
