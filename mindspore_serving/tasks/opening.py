"""Opening of a task's model: its runtime, tokenizer and labels."""

from pathlib import Path
from typing import Any, Protocol

from mindspore_serving import log
from mindspore_serving.core.tasks import (
    DETECTION,
    MAPS,
    TASKS,
    ZERO_SHOT,
    TaskOptions,
    TaskSpec,
    split_architecture,
    task_of,
)
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.catalog import ENCODER_RUNTIMES, TRANSFORMERS
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_json
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.labels import read_labels
from mindspore_serving.llm.models import has_encoder
from mindspore_serving.llm.models.layouts import open_converted
from mindspore_serving.llm.step import EncoderRunner
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from mindspore_serving.tasks.options import split_options
from mindspore_serving.tasks.queries import (
    QueryBuilder,
    entity_queries,
    fill_queries,
    label_queries,
    vector_queries,
)
from mindspore_serving.tasks.text_model import EncoderTextModel, TextModel
from mindspore_serving.tasks.text_task import Outcome, TextTask

RUNTIMES = (*ENCODER_RUNTIMES, TRANSFORMERS)


class OpenTask(Protocol):
    """Loaded model of a task.  Used by one thread."""

    batch_size: int

    def run(self, rows: Any) -> list[Outcome]:
        """Return one outcome for each row of inputs, in order."""
        ...

    def close(self) -> None: ...


def open_task(spec: TaskSpec, runner: EncoderRunner | None = None) -> OpenTask:
    """Load the model in `spec.path`; `runner` is its encoder if that is loaded already.

    Raises StartError: an unknown option or runtime, an unsupported head, or a file that is missing,
    broken or contradicts another.
    """
    directory = Path(spec.path)
    if not directory.is_dir():
        raise StartError(f"path is {spec.path!r}, expected a model's directory")
    config = read_json(directory / CONFIG)
    _check_task(config, spec)
    try:
        options, engine_config = split_options(spec.options)
    except InvalidInputs as error:
        raise StartError(str(error)) from error
    if spec.task in ("image-classification", DETECTION, *MAPS):
        if spec.runtime not in ("", TRANSFORMERS):
            raise StartError(f"runtime is {spec.runtime!r}, expected {TRANSFORMERS} for images")
        return _open_of_images(directory, spec.task, options, engine_config)
    if spec.task == ZERO_SHOT:
        return _open_zero_shot(directory, spec.runtime, options, engine_config, runner)
    tokenizer = Tokenizer.open(directory)
    model = _open_text_model(spec, config, engine_config, runner)
    try:
        builder = _query_builder(spec.task, config, model, tokenizer, options)
    except BaseException:
        model.close()
        raise
    return TextTask(spec.task, model, tokenizer, builder, options=options, config=engine_config)


def _open_of_images(
    directory: Path, task: str, options: TaskOptions, config: EngineConfig
) -> OpenTask:
    if task == DETECTION:
        from mindspore_serving.tasks.detection_task import DetectionTask

        return DetectionTask(directory, options, config)
    if task in MAPS:
        from mindspore_serving.tasks.map_task import MapTask

        return MapTask(directory, task, options, config)
    from mindspore_serving.tasks.image_task import ImageTask

    return ImageTask.open(directory, options, config)


def _open_zero_shot(
    directory: Path,
    runtime: str,
    options: TaskOptions,
    config: EngineConfig,
    runner: EncoderRunner | None,
) -> OpenTask:
    from mindspore_serving.llm.engine.dual_encoder import RUNTIME, DualEncoder
    from mindspore_serving.llm.serving.engine_loop import LoopRunner
    from mindspore_serving.tasks.zero_shot_task import ZeroShotTask

    if isinstance(runner, LoopRunner) and isinstance(runner.encoder, DualEncoder):
        return ZeroShotTask(directory, runner.encoder, runner.compute, options, is_owned=False)
    tokenizer = Tokenizer.open(directory)
    encoder = DualEncoder.open_towers(directory, config, runtime or RUNTIME, tokenizer)
    return ZeroShotTask(directory, encoder, encoder.compute, options, is_owned=True)


def _check_task(config: dict[str, Any], spec: TaskSpec) -> None:
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    task = task_of(name)
    if spec.task not in TASKS:
        raise StartError(f"task is {spec.task!r}, expected one of {', '.join(TASKS)}")
    has_vectors = spec.task == "feature-extraction" and task not in (ZERO_SHOT, DETECTION)
    if not task or (spec.task != task and not has_vectors):
        detail = f"which is of {task}" if task else "whose head is not supported"
        raise StartError(
            f"config.json has architectures {names!r}, {detail}; expected one for {spec.task}"
        )


def _open_text_model(
    spec: TaskSpec, config: dict[str, Any], engine: EngineConfig, runner: EncoderRunner | None
) -> TextModel:
    from mindspore_serving.tasks.transformers_model import TransformersTextModel

    directory, runtime = Path(spec.path), spec.runtime
    if runner is not None:
        return EncoderTextModel(spec.task, runner, open_converted(directory))
    if runtime not in ("", *RUNTIMES):
        raise StartError(f"runtime is {runtime!r}, expected one of {', '.join(RUNTIMES)}")
    if has_encoder(config) and runtime != TRANSFORMERS:
        return EncoderTextModel.open(directory, spec.task, runtime or "openvino", engine)
    if runtime not in ("", TRANSFORMERS):
        family = split_architecture(config["architectures"][0])[0]
        raise StartError(f"runtime is {runtime!r}, but {family} models need {TRANSFORMERS}")
    log.info("%s is run by transformers", directory.name)
    return TransformersTextModel.open(directory, spec.task, engine)


def _query_builder(
    task: str, config: dict[str, Any], model: TextModel, tokenizer: Tokenizer, options: TaskOptions
) -> QueryBuilder:
    if task == "feature-extraction":
        return vector_queries(model.pooling)
    if task == "fill-mask":
        return fill_queries(tokenizer, options.top_k)
    labels = read_labels(config, model.num_outputs)
    if task == "token-classification":
        return entity_queries(labels)
    return label_queries(labels, options.top_k)
