"""Checks of a language model's options by name: which exist, and what engines and runtimes accept.

Imports nothing heavy, as `config`.
"""

from collections.abc import Collection, Mapping
from typing import Any

from mindspore_serving.core.model_card import UPSTREAM
from mindspore_serving.errors import InvalidInputs, StartError, did_you_mean
from mindspore_serving.llm.catalog import (
    AUTO,
    COMBINED,
    ENGINES,
    NAMES,
    OPENVINO,
    OURS,
    RUNTIMES,
    TRANSFORMERS,
)
from mindspore_serving.llm.config import OPTIONS, EngineConfig
from mindspore_serving.llm.option_rows import ENCODERS

# Options of former versions, and what became of them.
REMOVED = {
    "graph_mode": "was removed in 3.0: the runtime 'mindspore' always compiles graphs; leave it out"
}
# Options of models that transcribe speech and of voices, and those that other models lack.
OF_VOICES_ALONE = "max_speech_characters"
OF_VOICES = (OF_VOICES_ALONE, "max_num_waiting", "num_threads")
OF_SPEECH = (
    "device", "dtype", "kv_cache_memory", "max_audio_seconds", "max_num_seqs", "max_num_waiting",
    "num_threads", "quantization",
)  # fmt: skip
# Options that text models with an encoder and a decoder do not have.
NOT_SEQ2SEQ = (
    "adapters", "max_loras", "draft", "mtp", "num_speculative_tokens", "pinned_prompts",
    "prefix_cache_dir", "prefix_cache_store", "tensor_parallel", "pipeline_parallel",
    "expert_parallel", "expert_counts", "expert_replicas", "stage_layers", "embeddings",
    "ranking", "deterministic", "memory", "kv_cache_dtype",
)  # fmt: skip


def make_config(options: Mapping[str, Any]) -> EngineConfig:
    """Return the options as a config.  Raises InvalidInputs naming one that does not exist."""
    check_names(options, OPTIONS)
    return EngineConfig(**options)


def check_names(options: Collection[str], known: Collection[str]) -> None:
    """Raise InvalidInputs for an option that is not `known`."""
    for name in options:
        if name in REMOVED:
            raise InvalidInputs(f"the option {name!r} {REMOVED[name]}")
        if name not in known:
            expected = did_you_mean(name, known) or f", expected one of {', '.join(known)}"
            raise InvalidInputs(f"there is no option {name!r}{expected}")


def check_engine(config: EngineConfig, engine: str, engine_options: Mapping[str, Any]) -> None:
    """Raise StartError if there is no such engine, or for an option that it does not take."""
    if engine not in NAMES:
        near = did_you_mean(engine, NAMES)
        raise StartError(f"engine is {engine!r}, expected one of {', '.join(NAMES)}{near}")
    if engine == UPSTREAM:
        raise StartError(f"engine {engine!r} is for servers only: it has no model here")
    for name in engine_options if engine == OURS else ():
        raise StartError(
            f"engine_options has {name!r}, but engine {OURS!r} has no options; see llm_options"
        )
    for name in _missing(config, engine):
        accepted = ", ".join(sorted(name for name, row in OPTIONS.items() if row.name_in(engine)))
        raise StartError(f"engine {engine!r} has no option {name}, expected any of {accepted}")


def check_runtime(
    config: EngineConfig, runtime: str, known: Collection[str] = RUNTIMES, purpose: str = ""
) -> None:
    """Raise StartError for a `runtime` that is not `known`, or that does not take the options.

    Options of AUTO are those of OPENVINO, unless one is set that it does not have.
    """
    if runtime == AUTO:
        runtime = COMBINED if _missing(config, OPENVINO) else OPENVINO
    if runtime not in known:
        expected = f"{', '.join(known)}{purpose}{did_you_mean(runtime, known)}"
        raise StartError(f"runtime is {runtime!r}, expected one of {expected}")
    for name in _missing(config, runtime):
        row = OPTIONS[name]
        accepted = ", ".join(other for other in RUNTIMES if row.name_in(other))
        raise StartError(f"runtime {runtime!r} has no {name}, expected one of {accepted}")
    _check_values(config, runtime)


def _check_values(config: EngineConfig, runtime: str) -> None:
    accepts = RUNTIMES[runtime].accepts if runtime in RUNTIMES else {}
    for name, values in accepts.items():
        value = getattr(config, name)
        if value not in values:
            *first, last = (str(value or "none") for value in values)
            accepted = f"{', '.join(first)} and {last}" if first else f"only {last}"
            raise StartError(f"{name} is {value!r}, the {runtime} runtime accepts {accepted}")


def find_device(
    device_type: str, device_id: int | None, runtime: str, engine: str = OURS
) -> str | None:
    """Return the option `device` for a worker of `device_type` ("none": any) on `device_id`.

    None leaves the choice to the runtime or the engine. Raises StartError if that cannot compute on
    this type, or on a device of this number.
    """
    if engine in ENGINES:
        label, devices = f"engine {engine!r}", ENGINES[engine].devices
    else:
        label = f"runtime {runtime!r}"
        row = RUNTIMES.get({TRANSFORMERS: "torch", AUTO: OPENVINO}.get(runtime, runtime))
        devices = row.devices if row else {}
    if device_type == "none" or not devices:
        return f"auto:{device_id}" if engine == "vllm" and device_id else None
    name = devices.get(device_type)
    if name is None:
        able = ", ".join(n for n, row in RUNTIMES.items() if device_type in row.devices)
        raise StartError(
            f"device_type is {device_type!r}, but {label} computes on {', '.join(devices)} only; "
            f"choose --runtime {able}, or leave device_type out"
        )
    if not device_id or device_type == "cpu":
        return name or None
    if name == "ascend":
        raise StartError(
            f"device_ids has {device_id}, but {label} computes on the first visible device: "
            f"set ASCEND_RT_VISIBLE_DEVICES={device_id} and device_ids=0"
        )
    return f"{name}:{device_id}"


def check_encoder(config: EngineConfig) -> None:
    """Raise StartError for an option that models which only embed do not have."""
    for name in _missing(config, ENCODERS):
        raise StartError(f"{name} is an option of models that generate; this one embeds")


def check_speech(config: EngineConfig) -> None:
    """Raise StartError for an option that models of speech do not have."""
    _check_known(config, "models of speech", OF_SPEECH)
    _check_values(config, OPENVINO)


def check_seq2seq(config: EngineConfig) -> None:
    """Raise StartError for an option that models with an encoder and a decoder do not have."""
    for name in (n for n in NOT_SEQ2SEQ if config.is_set(n) and getattr(config, n) != 0):
        raise StartError(f"{name} is an option of decoders; this model has an encoder as well")


def check_voices(config: EngineConfig) -> None:
    """Raise StartError for an option that voices do not have."""
    _check_known(config, "voices", OF_VOICES)


def _check_known(config: EngineConfig, models: str, known: Collection[str]) -> None:
    for name in (name for name in OPTIONS if config.is_set(name) and name not in known):
        accepted = ", ".join(known)
        raise StartError(f"{models} have no option {name}, expected any of {accepted}")


def _missing(config: EngineConfig, target: str) -> list[str]:
    """Return the options that are set and that `target` does not take."""
    return [n for n, row in OPTIONS.items() if row.name_in(target) is None and config.is_set(n)]
