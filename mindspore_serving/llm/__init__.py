"""Language models: `from mindspore_serving.llm import LLM, SamplingParams`.

The names are resolved on first use, so that importing the package loads no runtime.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Answer": "mindspore_serving.llm.outputs",
    "BeamSearchOutput": "mindspore_serving.llm.beam_search",
    "BeamSearchParams": "mindspore_serving.llm.beam_search",
    "BeamSearchSequence": "mindspore_serving.llm.beam_search",
    "Completion": "mindspore_serving.llm.outputs",
    "Engine": "mindspore_serving.llm.engine.engine",
    "EngineStats": "mindspore_serving.llm.engine.stats",
    "EngineConfig": "mindspore_serving.llm.config",
    "FinishReason": "mindspore_serving.core.sampling_params",
    "Generated": "mindspore_serving.core.sampling_params",
    "Grammar": "mindspore_serving.core.llm_messages",
    "LLM": "mindspore_serving.llm.llm",
    "SamplingParams": "mindspore_serving.core.sampling_params",
    "TokenLogprob": "mindspore_serving.core.sampling_params",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
