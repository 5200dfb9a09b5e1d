"""Options of servables: one table, each row a field of `ServableOptions`.

`ServableStartConfig`, `Deployment`, the options of `serve`, configuration files with their schema
and the parameters of a load by protocol v2 are made from the rows.  Checks nothing.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from mindspore_serving.core.network import MODES, NetworkCode, parse_arguments, parse_inputs
from mindspore_serving.core.params import param, rows_of
from mindspore_serving.core.traffic import parse_weights
from mindspore_serving.core.worker_options import WorkerOptions, limits, models, workers


@dataclass(frozen=True, slots=True, eq=False)
class ServableOptions(WorkerOptions):
    """Options of one version of one servable."""

    _: KW_ONLY
    allow_pickle: bool = models(
        False,
        "load scikit-learn models from pickles, which can run any code",
        details="Only for model files without servable_config.py",
        page="backends.md#rows-of-numbers",
    )
    backend: str = models(
        "",
        "library that runs MindIR or ONNX files without servable_config.py",
        details="MindIR: mindspore or openvino; ONNX: onnxruntime or openvino",
        default_text="the first that is installed",
        choices=("mindspore", "onnxruntime", "openvino"),
        page="backends.md#mindir-without-mindspore",
    )
    precision: str = models(
        "",
        "precision in which OpenVINO computes model files",
        details="It changes the numbers in answers. A processor without it computes in float32",
        default_text="float32",
        choices=("float32", "bfloat16", "float16"),
        page="backends.md#precision",
    )
    python: str = workers(
        "",
        "Python interpreter of the workers, a path or a name in PATH",
        details="It needs msgspec, numpy, protobuf and what the servable imports",
        default_text="that of the server",
        is_path=True,
        metavar="PYTHON",
        page="engines.md#an-interpreter",
    )
    environment: str = workers(
        "",
        "directory with the pylock.toml, requirements.lock or requirements.txt of the workers",
        details="They run in an environment that is made from it once, based on `python`",
        is_path=True,
        metavar="DIR",
        page="engines.md#an-interpreter",
    )
    with_batch_dim: bool | None = models(
        None,
        "the first axis of a model's inputs and outputs counts instances",
        default_text="decided by its shapes",
        details="Only for model files without servable_config.py; if False, a run has one instance "
        "of whole tensors",
        serve="batch_dim",
        page="backends.md#the-batch-dimension",
    )
    batch_axis: Mapping[str, int] | None = models(
        None,
        "axis that counts instances, by input and output, as state=1,rate=-1",
        details="0 for those that are not named, -1 for an input without. Only for model files "
        "without servable_config.py",
        metavar="AXES",
        page="backends.md#the-batch-dimension",
    )
    states: Mapping[str, str] | None = models(
        None,
        "outputs that are inputs of the next request, as state=stateN",
        details="Only for model files without servable_config.py",
        metavar="STATES",
        page="sequences.md",
    )
    max_sequences: int = limits(
        1024,
        "max sequences at once of each method with a state",
        details="The start of a further one is refused",
        at_least=1,
        at_most=1 << 20,
        is_common=False,
        page="sequences.md",
    )
    max_sequence_bytes: int = limits(
        256 << 20,
        "max memory of the states of the sequences of each method",
        at_least=1,
        unit="bytes",
        is_common=False,
        page="sequences.md",
    )
    sequence_idle_seconds: float = limits(
        60,
        "time without a request after which a sequence ends",
        at_least=0.1,
        unit="seconds",
        is_common=False,
        page="sequences.md",
    )
    sequence_handover_seconds: float = workers(
        60,
        "time for which sequences continue in a version that a new one has replaced",
        details="The old workers stay beside the new ones until then, or until their sequences "
        "have ended",
        at_least=0,
        unit="seconds",
        is_common=False,
        page="sequences.md",
    )
    keep_sequences: bool = workers(
        False,
        "continue the sequences of a worker that died on another one",
        details="The states travel to the server with each answer. Otherwise the sequences of a "
        "worker end with it",
        page="sequences.md",
    )
    traffic: Mapping[str, float] | None = workers(
        None,
        "weights of the versions that get requests without a version, as 1=90,2=10",
        default_text="the newest version gets all",
        metavar="WEIGHTS",
        parse=parse_weights,
        load="traffic",
        page="traffic.md",
    )
    sticky: str = workers(
        "",
        "what decides the version of a request: key (the API key), or header:NAME",
        details="Requests with the same value get the same version while the weights stay",
        default_text="each request in its turn",
        metavar="WHAT",
        load="sticky",
        page="traffic.md",
    )
    shadow: Mapping[str, float] | None = workers(
        None,
        "percent of the requests that a version gets a copy of, as 2=5",
        details="Answers to copies are compared and counted, and never shown",
        metavar="PERCENTS",
        parse=parse_weights,
        load="shadow",
        page="traffic.md#shadow",
    )
    shadow_tolerance: float = workers(
        0,
        "difference, absolute or relative, up to which numbers of a shadow's answer are equal",
        at_least=0,
        metavar="NUMBER",
        load="shadow_tolerance",
        page="traffic.md#shadow",
    )
    network: str = param(
        "",
        "class of the Python file `servable_name`, or function that returns an object: an nn.Cell "
        "of MindSpore or an nn.Module of PyTorch",
        details="`serve` has it behind the file: net.py:Net. The file is run",
        serve=None,
    )
    weights: str = models(
        "",
        "weights of a network in code, net.py:Net: .ckpt, .safetensors, .pt or .pth",
        default_text="the values of its constructor",
        is_path=True,
        page="networks.md",
    )
    arguments: Mapping[str, Any] | None = models(
        None,
        "arguments of a network's constructor, as num_classes=10, or a JSON object",
        metavar="ARGUMENTS",
        parse=parse_arguments,
        page="networks.md",
    )
    inputs: Mapping[str, str] | None = models(
        None,
        "inputs of a network, as 'x=float32[-1,1,28,28]', or x=@FILE.npy, an example batch",
        details="They are needed only where the code does not describe them. -1 is any size",
        metavar="INPUTS",
        parse=parse_inputs,
        page="networks.md",
    )
    mode: str = models(
        "",
        "compile a network of MindSpore to a graph, or run it as Python",
        default_text="graph, if the shapes of its inputs are known",
        choices=MODES,
        page="networks.md",
    )

    @property
    def name(self) -> str:
        """Name of the servable for clients."""
        return self.alias or self.servable_name

    @property
    def network_code(self) -> NetworkCode | None:
        """Network of a Python file, if this is one."""
        if not self.network:
            return None
        arguments, inputs = dict(self.arguments or {}), dict(self.inputs or {})
        return NetworkCode(self.network, self.weights, arguments, inputs, self.mode)


SERVABLE = rows_of(ServableOptions)
