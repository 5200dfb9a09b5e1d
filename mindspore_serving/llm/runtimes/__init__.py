"""Which runtimes there are.  Imports one, and the library below it, only when it is asked for."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.step import Runner

Open = Callable[[str | Path, EngineConfig], Runner]

# name -> "module:function"; another runtime is one more row.
RUNTIMES: dict[str, str] = {
    "openvino": "mindspore_serving.llm.runtimes.openvino:open_runner",
    "torch": "mindspore_serving.llm.runtimes.torch:open_runner",
    "mindspore": "mindspore_serving.llm.runtimes.mindspore:open_runner",
    "mindir": "mindspore_serving.llm.runtimes.mindir:open_runner",
    "toy": "mindspore_serving.llm.runtimes.toy:open_runner",
}
ADAPTABLE = ("torch",)  # those that take EngineConfig.adapters


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
    module, _, function = RUNTIMES[runtime].partition(":")
    try:
        opener: Open = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mindspore_serving"):
            raise
        raise StartError(
            f"runtime {runtime!r} needs {error.name}, which is not installed"
        ) from error
    return opener(directory, config)
