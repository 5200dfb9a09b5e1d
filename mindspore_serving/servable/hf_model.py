"""`declare_hf_model` records a Hugging Face model that does not generate; a worker loads it."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_serving.core.declaration import Declaration
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.tasks import HEADS, TASKS, TaskSpec, task_of
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.hub.resolve import resolve_prepared
from mindspore_serving.servable.check import check_str
from mindspore_serving.servable.method_builder import MethodBuilder, current


@dataclass(frozen=True, slots=True)
class HFModel:
    """Declared Hugging Face model, a stage for `add_stage`; made by `declare_hf_model`."""

    path: str


def declare_hf_model(
    path: str, *, task: str | None = None, runtime: str = "", **options: Any
) -> HFModel:
    """Declare a Hugging Face model in servable_config.py; every worker that has models loads it.

    As a stage it takes the first inputs of its task and returns the first outputs, any number of
    each.  An input that is missing or "" has its default:

        model = register.declare_hf_model("sst2", truncate=True)

        @register.register_method(output_names=["label", "score"])
        def classify(review):
            text = register.add_stage(clean, review, outputs_count=1)
            return register.add_stage(model, text, outputs_count=2)

    | task | inputs | outputs |
    |---|---|---|
    | text-classification | text, text_pair, top_k, truncate | label, score, labels, scores |
    | token-classification | text, aggregation, truncate | entities |
    | feature-extraction | text, pooling, truncate | embedding |
    | fill-mask | text, top_k, truncate | text, tokens, scores |
    | image-classification | image, top_k | label, score, labels, scores |
    | depth-estimation | image | depth, lowest, highest |
    | image-segmentation | image, subtask, and three thresholds | mask, segments |
    | zero-shot-image-classification | image, candidate_labels, hypothesis_template, top_k | same |
    | zero-shot-object-detection | image, candidate_labels, threshold, top_k | detections |

    If it is the only model and no method is registered, there is `predict` with all of these.

    Args:
        path: the model's directory, relative to the servable's; or its name, as "hf://ORG/NAME".
        task: None is the task of the architecture in config.json.  "feature-extraction" is possible
            with any head, which is then not computed.
        runtime: "openvino" or "torch" for texts of the BERT family, "transformers" for all; "" is
            openvino where that can run the model.
        options: fields of `TaskOptions` (`top_k`, `truncate`, `max_image_bytes`,
            `max_image_pixels`), and of `EngineConfig` such as `max_model_len`, `num_threads`,
            `max_num_seqs` (instances of a batch) and `max_num_batched_tokens` (tokens of one).

    Raises RuntimeError for a wrong argument, a directory without a task, a model that is already
    declared, and outside a servable_config.py.
    """
    declaration = current("declare_hf_model")
    check_str("path", path)
    if task is not None and task not in TASKS:
        raise InvalidInputs(f"task is {task!r}, expected one of {', '.join(TASKS)}")
    caller = os.path.abspath(sys._getframe(1).f_code.co_filename)
    directory = os.path.dirname(caller)
    location = os.path.normpath(os.path.join(directory, resolve_prepared(path, directory)))
    if location in declaration.tasks:
        raise InvalidInputs(f"the model {path!r} has already been declared")
    architecture = read_architecture(location)
    task_name = task or task_of(architecture)
    if not task_name:
        raise InvalidInputs(
            f"{os.path.join(location, 'config.json')} has architecture {architecture!r}, expected "
            f"one that ends with {', '.join(HEADS)}"
        )
    declaration.tasks[location] = TaskSpec(location, task_name, runtime, options)
    return HFModel(location)


def read_architecture(directory: str) -> str:
    """Return the first architecture in config.json; "" if there is none, or no such file."""
    try:
        config = json.loads((Path(directory) / "config.json").read_text("utf-8"))
        return str(config["architectures"][0])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""


def task_stage(
    builder: MethodBuilder,
    model: HFModel,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    tag: str | None,
) -> Stage:
    """Return the stage of a declared model.

    Raises InvalidInputs for a model that is not declared, and for a wrong number of inputs or
    outputs.
    """
    spec = builder.declaration.tasks.get(model.path)
    if spec is None:
        raise builder.failure(f"{model} is not declared in this servable_config.py")
    task = TASKS[spec.task]
    if not 1 <= len(inputs) <= len(task.inputs) or not 1 <= len(outputs) <= len(task.outputs):
        raise builder.failure(
            f"{spec.task} takes the first of {', '.join(task.inputs)} and returns the first of "
            f"{', '.join(task.outputs)}; add_stage was given {len(inputs)} input(s) and "
            f"{len(outputs)} output(s)"
        )
    return Stage(StageKind.TASK, spec.path, inputs, outputs, tag or f"Model of {spec.task}")


def add_task_method(declaration: Declaration, spec: TaskSpec) -> None:
    """Declare the model of `spec`, and a method `predict` with all its inputs and outputs."""
    task = TASKS[spec.task]
    inputs = tuple(range(len(task.inputs)))
    outputs = tuple(range(len(inputs), len(inputs) + len(task.outputs)))
    stage = Stage(StageKind.TASK, spec.path, inputs, outputs, f"Model of {spec.task}")
    declaration.tasks[spec.path] = spec
    declaration.methods["predict"] = Method(
        "predict", task.inputs, task.outputs, (stage,), outputs, defaults=task.defaults
    )
