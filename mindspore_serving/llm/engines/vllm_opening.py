"""Opening of a model in vLLM: our options as vLLM's, and errors of its processes."""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mindspore_serving.llm.vllm_options import VARIABLES, make_arguments

# Before vLLM is imported: its processes must not inherit our threads, and nothing calls home.
for _name, _value in {**VARIABLES, "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn"}.items():
    os.environ.setdefault(_name, _value)

from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: E402

from mindspore_serving.errors import InvalidInputs, StartError  # noqa: E402
from mindspore_serving.llm.checkpoint.lora import read_adapter  # noqa: E402
from mindspore_serving.llm.config import EngineConfig  # noqa: E402
from mindspore_serving.llm.engines import check_options, vllm_memory  # noqa: E402
from mindspore_serving.llm.engines.base import EngineModel  # noqa: E402
from mindspore_serving.llm.engines.child_errors import last_errors  # noqa: E402
from mindspore_serving.llm.engines.vllm_engine import VllmEngine  # noqa: E402
from mindspore_serving.llm.engines.vllm_stats import StepStats  # noqa: E402
from mindspore_serving.llm.visible_devices import show_device  # noqa: E402

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # of adapters


def open_engine(model: EngineModel, config: EngineConfig, options: Mapping[str, Any]) -> VllmEngine:
    """Open the model.  Raises StartError with the reason that vLLM gives."""
    check_options("vllm", options, frozenset(field.name for field in fields(AsyncEngineArgs)))
    stats = StepStats()
    with last_errors() as errors:
        try:
            arguments = {**_arguments(model, config), **options}
            if current_platform.device_type == "cpu":
                arguments = vllm_memory.with_share(arguments)
            engine_args = AsyncEngineArgs(**arguments)
            llm = AsyncLLM.from_engine_args(engine_args, stat_loggers=[stats.logger])
        except (Exception, SystemExit) as error:
            lines = [*errors.lines(), str(error).strip().split("\n")[0] or repr(error)]
            raise StartError(f"engine vllm cannot open the model: {lines[0]}") from error
    return VllmEngine(llm, model, config, stats)


def _arguments(model: EngineModel, config: EngineConfig) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": str(model.directory),
        "skip_tokenizer_init": model.tokenizer is None,
        "structured_outputs_config": {"backend": "guidance"},
        "disable_log_stats": True,
        **make_arguments(config),
    }
    _check_device(config.device)
    if config.adapters:
        rank = max(_rank(path) for path in config.adapters.values())
        arguments |= {"enable_lora": True, "max_loras": len(config.adapters), "max_lora_rank": rank}
    return arguments


def _rank(path: str | Path) -> int:
    """Return the smallest rank of vLLM for the adapter.  Raises StartError if it cannot be read."""
    highest = max((len(pair.down) for pair in read_adapter(path).added.values()), default=1)
    return next((rank for rank in _RANKS if rank >= highest), highest)


def _check_device(device: str) -> None:
    kind, _, number = device.partition(":")
    if kind not in ("auto", current_platform.device_type):
        raise InvalidInputs(
            f"device is {device!r}, but this vllm is for {current_platform.device_type}"
        )
    if number and current_platform.device_type != "cpu":
        show_device(current_platform.device_type, number)
