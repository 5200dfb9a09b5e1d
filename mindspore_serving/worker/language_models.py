"""Load models of whole directories: language models, upstream servers and models of tasks."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspore_serving import file_check
from mindspore_serving.backends.devices import usable
from mindspore_serving.core.declaration import LanguageSpec
from mindspore_serving.core.model_card import UPSTREAM
from mindspore_serving.core.tasks import TaskSpec
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.ipc.messages import Setup
from mindspore_serving.ipc.status import Lane
from mindspore_serving.llm.catalog import AUTO, OPENVINO, OURS, TRANSFORMERS
from mindspore_serving.llm.options import find_device
from mindspore_serving.worker.loaded_servable import LoadedServable

if TYPE_CHECKING:
    from mindspore_serving.llm.loader import OpenedModel
    from mindspore_serving.llm.upstream.engine import UpstreamModel
    from mindspore_serving.worker.language import LanguageService

MAX_WAITING = 1024  # requests, by default
MAX_PROMPTS = 32 * MAX_WAITING  # of an encoder: a request may have thousands of small ones
MAX_WAITING_TOKENS = 1 << 20  # of all queued requests together
SWITCH_SECONDS = 0.0005  # for how long another thread can delay the step loop


def open_language(
    spec: LanguageSpec, setup: Setup, wake: Callable[[], None], steps: Lane | None
) -> "LanguageService":
    """Load the servable's language model and start its engine.  Raises StartError."""
    from mindspore_serving.worker.language import LanguageService, LanguageStage

    _check_engine(spec, setup)
    if spec.engine == UPSTREAM:
        upstream = _open_upstream(spec, wake)
        return LanguageService(upstream, LanguageStage(upstream, spec.params, setup.name))
    from mindspore_serving.llm.speech.settings import is_speech

    if is_speech(spec.path):
        return _open_speech(spec, setup, wake)
    if file_check.find_voice(spec.path):
        return _open_voices(spec, setup, wake)
    from mindspore_serving.llm.checkpoint.encrypted import set_key
    from mindspore_serving.llm.checkpoint.model_files import find_config
    from mindspore_serving.llm.loader import open_model
    from mindspore_serving.llm.models import is_encoder
    from mindspore_serving.llm.models.dual import find_dual
    from mindspore_serving.llm.options import make_config
    from mindspore_serving.llm.parallel.machines import set_placement
    from mindspore_serving.llm.runtimes.fitting import check_fits
    from mindspore_serving.llm.serving.async_engine import AsyncEngine

    if setup.dec_key is not None:
        set_key(setup.dec_key)
    options = dict(spec.options)
    fields = find_config(Path(spec.path))
    embeds_only = is_encoder(fields) or find_dual(fields) is not None
    options.setdefault("max_num_waiting", MAX_PROMPTS if embeds_only else MAX_WAITING)
    options.setdefault("max_num_waiting_tokens", MAX_WAITING_TOKENS)
    options = _with_device(options, setup, spec.runtime, spec.engine)
    if spec.engine == "vllm" and (started := _open_vllm_server(spec, options, setup, wake)):
        return LanguageService(started, LanguageStage(started, spec.params, setup.name))
    try:
        config = make_config(options)
        if setup.placement is not None:
            config = set_placement(
                setup.placement, setup.servable_directory, config, divides=spec.runtime != "mindir"
            )
            if not setup.placement.addresses:  # a single machine is left
                check_fits(spec.path)
        opened = open_model(spec.path, spec.runtime, config, spec.engine, spec.engine_options)
    except InvalidInputs as error:
        raise StartError(str(error)) from error
    sys.setswitchinterval(SWITCH_SECONDS)
    _check_role(opened, setup.role)
    if opened.transcription_format is None:
        engine = AsyncEngine(opened, wake, steps)
        return LanguageService(engine, LanguageStage(engine, spec.params, setup.name))
    from mindspore_serving.llm.speech.transcribing import TranscribingEngine
    from mindspore_serving.worker.transcription import TranscriptionStage

    engine = TranscribingEngine(opened, opened.transcription_format, wake, steps)
    stages = (kind(engine, spec.params, setup.name) for kind in (LanguageStage, TranscriptionStage))
    return LanguageService(engine, *stages)


def _check_engine(spec: LanguageSpec, setup: Setup) -> None:
    """Raise StartError if the engine does not support where the worker runs, or its role."""
    for option, value in (("rank_machines", setup.placement), ("roles", setup.role)):
        if value and spec.engine != OURS:
            raise StartError(f"{option} is set, which engine {spec.engine!r} does not support")


def _check_role(opened: "OpenedModel", role: str) -> None:
    """Close the model and raise StartError if workers cannot compute prompts for each other."""
    if role and (problem := opened.why_no_handoff()):
        opened.engine.close()
        raise StartError(f"roles is set, but {problem}: leave it out")


def _open_speech(spec: LanguageSpec, setup: Setup, wake: Callable[[], None]) -> "LanguageService":
    """Load a model that transcribes speech.  Raises StartError."""
    if setup.role:
        raise StartError("roles is set, but the model transcribes speech: leave it out")
    from mindspore_serving.llm.options import make_config
    from mindspore_serving.llm.speech.engine import SpeechEngine
    from mindspore_serving.worker.language import LanguageService
    from mindspore_serving.worker.transcription import TranscriptionStage

    runtime = OPENVINO if spec.runtime == AUTO else spec.runtime
    if (spec.engine, runtime) != (OURS, OPENVINO):
        problem = f"engine is {spec.engine!r} and runtime {spec.runtime!r}"
        raise StartError(f"{problem}, but models of speech have {OURS!r} and {OPENVINO!r} only")
    options = _with_device(dict(spec.options), setup, runtime, spec.engine)
    try:
        engine = SpeechEngine(spec.path, make_config(options), wake)
    except InvalidInputs as error:
        raise StartError(str(error)) from error
    return LanguageService(engine, TranscriptionStage(engine, spec.params, setup.name))


def _open_voices(spec: LanguageSpec, setup: Setup, wake: Callable[[], None]) -> "LanguageService":
    """Load a model that synthesizes speech.  Raises StartError."""
    from mindspore_serving.llm.options import make_config
    from mindspore_serving.llm.voices.engine import VoiceEngine
    from mindspore_serving.worker.language import LanguageService, LanguageStage

    if (spec.engine, spec.runtime) != (OURS, AUTO):
        problem = f"engine is {spec.engine!r} and runtime {spec.runtime!r}"
        raise StartError(f"{problem}, but voices have {OURS!r} and {AUTO!r} only")
    try:
        engine = VoiceEngine(spec.path, make_config(spec.options), wake)
    except InvalidInputs as error:
        raise StartError(str(error)) from error
    return LanguageService(engine, LanguageStage(engine, spec.params, setup.name))


def _open_upstream(spec: LanguageSpec, wake: Callable[[], None]) -> "UpstreamModel":
    """Create the client of an upstream server.  Raises StartError."""
    from mindspore_serving.llm.upstream.engine import UpstreamModel
    from mindspore_serving.llm.upstream.options import read_model_options, read_options

    return UpstreamModel(read_options(spec.engine_options), read_model_options(spec.options), wake)


def _open_vllm_server(
    spec: LanguageSpec, options: Mapping[str, Any], setup: Setup, wake: Callable[[], None]
) -> "UpstreamModel | None":
    """Start a vLLM server for Ascend; None if this vLLM is for other devices.

    Raises StartError.
    """
    from mindspore_serving.llm.options import make_config
    from mindspore_serving.llm.upstream.vllm_plugins import find_plugin

    is_ascend = str(options.get("device", "")).startswith("npu") or setup.device_type == "ascend"
    plugin = find_plugin(is_ascend=is_ascend)
    if plugin is None:
        return None
    from mindspore_serving.llm.upstream.vllm_server import LocalModel, open_server

    name = setup.name or setup.servable_name
    config = make_config(options)
    model = LocalModel(plugin, Path(spec.path), name, config, spec.engine_options)
    return open_server(model, wake)


def open_task_model(servable: LoadedServable, spec: TaskSpec, setup: Setup) -> None:
    """Load a model that does not generate.  Raises StartError.

    A model that is also the servable's language model shares its encoder.
    """
    from mindspore_serving.tasks.opening import open_task

    spec = replace(spec, options=_with_device(spec.options, setup, spec.runtime or TRANSFORMERS))
    language = servable.declaration.language
    is_shared = (
        servable.language is not None and language is not None and language.path == spec.path
    )
    engine = servable.language.engine if servable.language is not None and is_shared else None
    servable.tasks[spec.path] = open_task(spec, None if engine is None else engine.encoder_runner())


def _with_device(
    options: Mapping[str, Any], setup: Setup, runtime: str, engine: str = OURS
) -> dict[str, Any]:
    """Return a model's options, with the device of this worker as default.  Raises StartError."""
    if "device" in options:
        return dict(options)
    device_type = setup.device_type
    is_torch = engine == OURS and runtime in ("torch", TRANSFORMERS)
    if device_type == "none" and setup.device_id and is_torch and "gpu" in usable("pytorch"):
        device_type = "gpu"  # else every worker would take the first GPU
    device = find_device(device_type, setup.device_id, runtime, engine)
    return dict(options) if device is None else {**options, "device": device}
