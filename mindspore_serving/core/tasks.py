"""The tasks of Hugging Face models that do not generate: what each takes and answers.

A table; knows no model.  Several labels or tokens are one JSON text, as a value holds one text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.core.params import param, rows_of
from mindspore_serving.core.signature import InstanceSignature, Shape, ValueSpec
from mindspore_serving.core.value import Value

OPTIONAL = ("text_pair", "top_k", "truncate", "aggregation", "pooling")
_TEXT, _NUMBER = ("str", ()), ("float32", ())
_LABELS = {"label": _TEXT, "score": _NUMBER, "labels": _TEXT, "scores": ("float32", (None,))}
_INPUTS = {"image": ("bytes", ()), "top_k": ("int32", ()), "truncate": ("bool", ())}  # else texts


@dataclass(frozen=True, slots=True)
class Task:
    """Inputs and outputs of a stage, in order; a request may leave out those of `OPTIONAL`."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    signature: InstanceSignature

    @property
    def defaults(self) -> dict[str, Value]:
        """ "" is what a request that leaves out an input gives."""
        return {name: "" for name in self.inputs if name in OPTIONAL}


def _task(inputs: str, outputs: Mapping[str, tuple[str, Shape | None]]) -> Task:
    """`inputs` with spaces between them, `outputs` with their types and shapes."""
    names = tuple(inputs.split())
    specs = [ValueSpec(name, *_INPUTS.get(name, _TEXT), name in OPTIONAL) for name in names]
    results = [ValueSpec(name, *spec) for name, spec in outputs.items()]
    return Task(names, tuple(outputs), InstanceSignature(tuple(specs), tuple(results)))


TASKS = {
    "text-classification": _task("text text_pair top_k truncate", _LABELS),
    "token-classification": _task("text aggregation truncate", {"entities": _TEXT}),
    "feature-extraction": _task("text pooling truncate", {"embedding": ("float32", None)}),
    "fill-mask": _task(
        "text top_k truncate",
        {"text": _TEXT, "tokens": _TEXT, "scores": ("float32", (None, None))},
    ),
    "image-classification": _task("image top_k", _LABELS),
}
HEADS = {  # how the name of an architecture ends, and the task of such a model
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForImageClassification": "image-classification",
    "Model": "feature-extraction",
}


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How instances are limited and answered where they do not say it themselves.

    Raises InvalidInputs naming the option, what was given and what is accepted.
    """

    top_k: int = param(
        5, "labels or tokens that are answered, the likeliest first; 0 for all", at_least=0
    )
    truncate: bool = param(
        False, "cut texts that are longer than the model takes, instead of refusing them"
    )
    max_image_bytes: int = param(20 << 20, "of an image as it is sent", at_least=1)
    max_image_pixels: int = param(
        32_000_000, "width times height of an image, read before it is decoded", at_least=1
    )

    def __post_init__(self) -> None:
        for name, row in TASK_OPTIONS.items():
            row.check(getattr(self, name))


TASK_OPTIONS = rows_of(TaskOptions)


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A declared model: its directory, its task, and what runs it, "" for the first that can."""

    path: str
    task: str
    runtime: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def split_architecture(name: str) -> tuple[str, str]:
    """(family, head): "BertForMaskedLM" is ("Bert", "ForMaskedLM").  The head is "" for a name
    that ends like none of `HEADS`.
    """
    head = next((head for head in HEADS if name.endswith(head)), "")
    return name.removesuffix(head), head


def task_of(architecture: str) -> str:
    """The task of a model by its head; "" if that is not served."""
    return HEADS.get(split_architecture(architecture)[1], "")
