"""Declaration of a servable: models, functions and methods.

Plain data, filled by `servable.loader` and read by the worker.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.core.graph import Method
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.core.sequences import ControlInput
from mindspore_serving.core.tasks import TaskSpec
from mindspore_serving.core.value import TensorSpec


@dataclass(frozen=True, slots=True)
class WarmUpInput:
    """Input of a sample: dtype, shape of an instance, and the values.

    They are zeros, random numbers, or the bytes of `file`.
    """

    dtype: str
    shape: tuple[int, ...]
    is_random: bool = False
    file: str = ""


@dataclass(frozen=True, slots=True)
class WarmUpSample:
    """Sample of inputs, by name, on which a model runs `count` times before it is served.

    With `batch_size` 0 the inputs have no batch dimension.
    """

    name: str
    inputs: Mapping[str, WarmUpInput]
    batch_size: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class DeclaredModel:
    """Declared model: what to load and how to batch it; nothing is loaded yet.

    `files` are paths relative to the version directory, one per sub-graph; `factory` replaces them
    for a model that is a Python function or class. Of a network, `files` are its weights, and
    `factory` makes it of `arguments`, to run in `mode` ("" is the default). `format` is lower
    case: "mindir", "onnx" or another of declare_model. `backend` is "mindspore" or "openvino" for
    "mindir", "onnxruntime" or "openvino" for "onnx", and "" for the default. With `allow_pickle`
    the operator allows that code in the file runs. `member` is its name if the file is in an
    archive. A run has at most `max_batch_size` instances; 0 is no limit. The model's
    tensors must agree with `inputs` and `outputs`, if there are any, and it returns those outputs.
    `with_batch_dim` None is decided by the loaded model's shapes; `no_batch_reason` is why they
    have no batch dimension then. `batch_axis` has the axis that counts instances of inputs and
    outputs by name, -1 for an input without; it is 0 for the others. `states` has the output that
    is the next value of an input of the same sequence, by the name of the input. `controls` are
    inputs that tell the model the place of a request in its sequence.
    """

    key: str
    format: str
    files: tuple[str, ...] = ()
    factory: Callable[..., Any] | None = None
    with_batch_dim: bool | None = True
    without_batch_dim_inputs: tuple[int, ...] = ()
    batch_axis: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    controls: tuple[ControlInput, ...] = ()
    no_batch_reason: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    config_file: str | None = None
    backend: str = ""
    allow_pickle: bool = False
    member: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    mode: str = ""
    max_batch_size: int = 0
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    warm_up: tuple[WarmUpSample, ...] = ()


@dataclass(frozen=True, slots=True)
class DistributedSpec:
    """Model cut over ranks, declared by `distributed.declare_servable`."""

    rank_size: int
    stage_size: int
    with_batch_dim: bool = True
    without_batch_dim_inputs: tuple[int, ...] = ()
    enable_pipeline_infer: bool = False


@dataclass(frozen=True, slots=True)
class LanguageSpec:
    """Declared language model: directory, runtime, and the engine's options.

    `params` are defaults of the sampling parameters; None: the model's default sampling.
    """

    path: str
    runtime: str
    options: Mapping[str, Any] = field(default_factory=dict)
    params: SamplingParams | None = None
    engine: str = "ours"  # a name of `llm.catalog`
    engine_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Declaration:
    """All declarations of one servable, filled while its servable_config.py is imported."""

    name: str
    models: dict[str, DeclaredModel] = field(default_factory=dict)
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    methods: dict[str, Method] = field(default_factory=dict)
    distributed: DistributedSpec | None = None
    language: LanguageSpec | None = None
    tasks: dict[str, TaskSpec] = field(default_factory=dict)  # by path
