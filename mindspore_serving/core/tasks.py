"""Tasks of Hugging Face models that do not generate: their inputs and outputs.

A table; knows no model. Several labels or tokens are one JSON text, as a value holds one text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.core.params import param, rows_of
from mindspore_serving.core.signature import InstanceSignature, Shape, ValueSpec
from mindspore_serving.core.value import Value

ZERO_SHOT = "zero-shot-image-classification"
DETECTION = "zero-shot-object-detection"
DEPTH, SEGMENTATION = "depth-estimation", "image-segmentation"
MAPS = (DEPTH, SEGMENTATION)
OPTIONAL = (
    "text_pair",
    "top_k",
    "truncate",
    "aggregation",
    "pooling",
    "hypothesis_template",
    "subtask",
    "threshold",
    "mask_threshold",
    "overlap_mask_area_threshold",
)
_TEXT, _NUMBER = ("str", ()), ("float32", ())
_LABELS = {"label": _TEXT, "score": _NUMBER, "labels": _TEXT, "scores": ("float32", (None,))}
_INPUTS = {
    "image": ("bytes", ()),
    "top_k": ("int32", ()),
    **dict.fromkeys(("threshold", "mask_threshold", "overlap_mask_area_threshold"), _NUMBER),
    "truncate": ("bool", ()),
}  # else texts


@dataclass(frozen=True, slots=True)
class Task:
    """Inputs and outputs of a stage, in order; those of `OPTIONAL` can be left out."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    signature: InstanceSignature

    @property
    def defaults(self) -> dict[str, Value]:
        """Defaults of optional inputs, all ""."""
        return {name: "" for name in self.inputs if name in OPTIONAL}


def _task(inputs: str, outputs: Mapping[str, tuple[str, Shape | None]]) -> Task:
    """Return a task with `inputs` separated by spaces, and `outputs` with types and shapes."""
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
    DETECTION: _task("image candidate_labels threshold top_k", {"detections": _TEXT}),
    DEPTH: _task("image", {"depth": ("bytes", ()), "lowest": _NUMBER, "highest": _NUMBER}),
    SEGMENTATION: _task(
        "image subtask threshold mask_threshold overlap_mask_area_threshold",
        {"mask": ("bytes", ()), "segments": _TEXT},
    ),
    ZERO_SHOT: _task("image candidate_labels hypothesis_template top_k", _LABELS),
}
HEADS = {  # suffix of an architecture's name -> its task
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForImageClassification": "image-classification",
    "ForDepthEstimation": DEPTH,
    "ForSemanticSegmentation": SEGMENTATION,
    "Model": "feature-extraction",
}
# Architectures with towers for texts and images, whose names end like those of other models.
DUAL = ("CLIPModel", "SiglipModel", "Siglip2Model")
GROUNDED = ("GroundingDinoForObjectDetection", "MMGroundingDinoForObjectDetection")
UNIVERSAL = (
    "MaskFormerForInstanceSegmentation",
    "Mask2FormerForUniversalSegmentation",
    "OneFormerForUniversalSegmentation",
    "EomtForUniversalSegmentation",
    "EomtDinov3ForUniversalSegmentation",
)
DETECTORS = ("OwlViTForObjectDetection", "Owlv2ForObjectDetection", *GROUNDED)


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Limits of instances, and defaults of their optional inputs.

    Raises InvalidInputs naming the option, its value and what is accepted.
    """

    top_k: int = param(
        5, "max labels or tokens of an answer, the likeliest first; 0 for all", at_least=0
    )
    truncate: bool = param(
        False, "truncate texts that are too long for the model, instead of refusing them"
    )
    max_image_bytes: int = param(20 << 20, "max size of an image file", at_least=1)
    max_image_pixels: int = param(
        32_000_000, "max width times height of an image, checked before it is decoded", at_least=1
    )

    def __post_init__(self) -> None:
        for name, row in TASK_OPTIONS.items():
            row.check(getattr(self, name))


TASK_OPTIONS = rows_of(TaskOptions)


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Declared model: directory, task and runtime, "" for the first that can run it."""

    path: str
    task: str
    runtime: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def split_architecture(name: str) -> tuple[str, str]:
    """Split an architecture into (family, head): "BertForMaskedLM" is ("Bert", "ForMaskedLM").

    The head is "" for a name that ends like none of `HEADS`.
    """
    head = next((head for head in HEADS if name.endswith(head)), "")
    return name.removesuffix(head), head


def task_of(architecture: str) -> str:
    """Return the task of a model by its head; "" if that is not served."""
    if architecture in DUAL:
        return ZERO_SHOT
    if architecture in DETECTORS:
        return DETECTION
    if architecture in UNIVERSAL:
        return SEGMENTATION
    return HEADS.get(split_architecture(architecture)[1], "")
