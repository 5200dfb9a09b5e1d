"""Which runtimes there are.  Imports one, and the library below it, only when it is asked for."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.step import EncoderRunner, Runner

Open = Callable[[str | Path, EngineConfig], Runner]
OpenEncoder = Callable[[str | Path, EngineConfig], EncoderRunner]

# name -> "module:function"; another runtime is one more row.
RUNTIMES: dict[str, str] = {
    "openvino": "mindspore_serving.llm.runtimes.openvino.opening:open_runner",
    "torch": "mindspore_serving.llm.runtimes.torch.opening:open_runner",
    "mindspore": "mindspore_serving.llm.runtimes.mindspore.opening:open_runner",
    "mindir": "mindspore_serving.llm.runtimes.mindir.opening:open_runner",
    "toy": "mindspore_serving.llm.runtimes.toy:open_runner",
}
# The same for models that embed and do not generate.
ENCODER_RUNTIMES: dict[str, str] = {
    "openvino": "mindspore_serving.llm.runtimes.openvino.encoder:open_encoder",
    "torch": "mindspore_serving.llm.runtimes.torch.encoder:open_encoder",
}
ADAPTABLE = ("torch",)  # those that take EngineConfig.adapters
COMPILED = ("mindspore",)  # those that take EngineConfig.graph_mode


def open_runner(directory: str | Path, runtime: str, config: EngineConfig) -> Runner:
    """The model in `directory`, ready to run in `runtime`.

    Raises StartError: an unknown runtime, one whose library is not installed, a model or an option
    that it cannot use.
    """
    if runtime not in RUNTIMES:
        raise StartError(f"runtime is {runtime!r}, expected one of {', '.join(RUNTIMES)}")
    if config.adapters and runtime not in ADAPTABLE:
        raise StartError(
            f"runtime {runtime!r} has no adapters, expected one of {', '.join(ADAPTABLE)}"
        )
    if config.graph_mode and runtime not in COMPILED:
        raise StartError(
            f"graph_mode is True, but runtime {runtime!r} has none, expected one of "
            f"{', '.join(COMPILED)}"
        )
    opener: Open = _find(runtime, RUNTIMES[runtime])
    return opener(directory, config)


def open_encoder(directory: str | Path, runtime: str, config: EngineConfig) -> EncoderRunner:
    """The encoder in `directory`, ready to run in `runtime`.  Raises StartError as `open_runner`
    does."""
    if runtime not in ENCODER_RUNTIMES:
        raise StartError(
            f"runtime is {runtime!r}, expected one of {', '.join(ENCODER_RUNTIMES)} for a model "
            "that embeds"
        )
    if config.adapters:
        raise StartError("adapters are for models that generate; this one embeds")
    if config.graph_mode:
        raise StartError("graph_mode is for models that generate; this one embeds")
    opener: OpenEncoder = _find(runtime, ENCODER_RUNTIMES[runtime])
    return opener(directory, config)


def _find(runtime: str, place: str) -> Any:
    module, _, function = place.partition(":")
    try:
        return getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mindspore_serving"):
            raise
        raise StartError(
            f"runtime {runtime!r} needs {error.name}, which is not installed"
        ) from error
