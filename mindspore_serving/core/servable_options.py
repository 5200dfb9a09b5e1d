"""Options of servables: one table, each row a field of `ServableOptions`.

`ServableStartConfig`, `Deployment`, the options of `serve`, configuration files with their schema
and the parameters of a load by protocol v2 are made from the rows.  Checks nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from mindspore_serving.core.network import MODES, NetworkCode, parse_arguments, parse_inputs
from mindspore_serving.core.params import param, rows_of

_models: Any = partial(param, group="models")
_workers: Any = partial(param, group="workers")
_batching: Any = partial(param, group="batching", is_common=True)
_limits: Any = partial(param, group="limits", is_common=True)


@dataclass(frozen=True, slots=True, eq=False)
class ServableOptions:
    """Options of one version of one servable; the first are in the order of the original API."""

    servable_directory: str = param(
        "",
        "directory that contains the servable's directory; may be relative to the start-up script",
        details="Or a model by its name, as hf://ORG/NAME, that clients call `servable_name`",
        serve=None,
    )
    servable_name: str = param(
        "",
        'the servable\'s directory in it, or a model file as "net.onnx"',
        details="The directory has a servable_config.py, and version directories such as 1/ with "
        "the model files; or no servable_config.py but one model file, in it or in 1/",
        serve=None,
    )
    device_ids: int | Sequence[int] | None = _workers(
        None,
        "devices, one worker process on each, as 0,1",
        details="`serve` uses device 0, unless the number of workers is set. On a CPU the numbers "
        "only distinguish workers",
        metavar="IDS",
        is_common=True,
        page="servable_config.md#workers-and-devices",
    )
    version_number: int = param(
        0, "version to serve", default_text="0, the newest at start", at_least=0, serve=None
    )
    device_type: str | None = _workers(
        None,
        "run models on Ascend, GPU or CPU",
        default_text="the first that works",
        metavar="TYPE",
        is_common=True,
    )
    num_parallel_workers: int = _workers(
        0,
        "worker processes per servable",
        details="Workers beyond the number of devices run Python stages only and, on CPU, models",
        default_text="0, one per device or 1",
        at_least=0,
        at_most=64,
        is_common=True,
    )
    dec_key: bytes | None = param(
        None,
        "key of an encrypted model: 16, 24 or 32 bytes",
        is_secret=True,
        serve=None,
    )
    dec_mode: str = param(
        "AES-GCM", 'encryption mode of the model: "AES-GCM" or "AES-CBC"', serve=None
    )
    _: KW_ONLY
    max_batch_delay_ms: float = _batching(
        0,
        "max time that requests wait for a larger batch",
        default_text="0, no wait",
        at_least=0,
        unit="milliseconds",
        metavar="MS",
        page="servable_config.md#batching",
    )
    preferred_batch_size: int = _batching(
        0,
        "size at which a batch waits no longer",
        default_text="0, the model's size",
        details="It has an effect only with `max_batch_delay_ms`",
        at_least=0,
        at_most=1 << 16,
    )
    retry: bool = param(
        True,
        "send the instances of a worker that died to another one",
        serve=None,
        load="retry",
    )
    restart_policy: str = _workers(
        "always",
        "when to restart a worker that died",
        details="always: after a delay that grows to 30 s while it dies soon each time; limited: "
        "not after five deaths within 10 s of their starts; never",
        choices=("always", "limited", "never"),
        page="reliability.md",
    )
    max_requests: int = _limits(
        0,
        "max requests in flight per servable",
        details="Further requests are refused",
        default_text="0, no limit",
        at_least=0,
        load="max_requests",
        page="reliability.md#overload",
    )
    max_queue_seconds: float = _limits(
        0,
        "refuse a request that has been queued this long",
        details="The queue of a method, of a worker and of a language model's engine count",
        default_text="0, never",
        at_least=0,
        unit="seconds",
        load="max_queue_seconds",
        page="reliability.md#overload",
    )
    cache_mb: float = _limits(
        0,
        "max size of the answers that are kept for equal requests, per method",
        details="Methods that stream or are declared with retry=False have no cache",
        default_text="0, no cache",
        at_least=0,
        at_most=1 << 20,
        unit="MiB",
        metavar="MB",
        page="servable_config.md#a-cache-of-answers",
    )
    cache_seconds: float = _limits(
        600,
        "with `cache_mb`: time for which an answer is kept",
        over=0,
        at_most=1e9,
        unit="seconds",
        page="servable_config.md#a-cache-of-answers",
    )
    cache_per_key: bool = _limits(
        False,
        "with `cache_mb`: a request gets no answer to a request with another API key",
        page="servable_config.md#a-cache-of-answers",
    )
    heartbeat_timeout: float = _workers(
        10,
        "time without a heartbeat after which a worker gets no new requests",
        details="Its queued requests go to other workers; after three times as long it is killed "
        "and replaced. 0 disables this",
        at_least=0,
        unit="seconds",
        load="heartbeat_timeout",
    )
    stage_timeout: float = _workers(
        0,
        "max time that a stage may run",
        details="A worker that takes longer is killed and replaced, and its running requests fail",
        default_text="0, no limit",
        at_least=0,
        unit="seconds",
        load="stage_timeout",
    )
    step_timeout: float = _workers(
        300,
        "max time of one step of a language model, as `stage_timeout`",
        at_least=0,
        unit="seconds",
        load="step_timeout",
    )
    alias: str = _models(
        "",
        "name for clients, if one servable is served",
        default_text="that of its file",
        metavar="NAME",
        is_common=True,
        serve="name",
    )
    llm_options: Mapping[str, Any] | None = param(
        None,
        "engine options of a language model without servable_config.py, a GGUF file or a Hugging "
        "Face directory",
        details='They are fields of `EngineConfig`, such as {"quantization": "int8"}, "runtime", '
        'or "engine" with "engine_options"; for a model that does not generate also fields of '
        '`core.tasks.TaskOptions`. With the engine "openai", and the `url` of another server in '
        "engine_options, there is no directory: `servable_name` is the model's name for clients",
        is_secret=True,
        serve=None,
    )
    max_workers: int = _workers(
        0,
        "scale the number of workers with the requests, up to this number",
        details="Each worker loads all models and, with `device_ids`, has a device of its own. Not "
        "with `num_parallel_workers`",
        default_text="0, a fixed number",
        at_least=0,
        at_most=64,
        page="servable_config.md#as-many-workers-as-there-are-requests-for",
    )
    min_workers: int = _workers(
        1,
        "with `max_workers`: number of workers kept while there are few requests",
        details="With 0 all workers end, and the next request waits until one has started",
        at_least=0,
        at_most=64,
    )
    requests_per_worker: int = _workers(
        8, "with `max_workers`: requests in flight for which one worker is started", at_least=1
    )
    scale_down_delay: float = _workers(
        60,
        "with `max_workers`: time that fewer workers must be enough before one is stopped",
        at_least=0,
        unit="seconds",
    )
    node_labels: Mapping[str, str] | None = param(
        None,
        "run only on machines with these labels, as zone=a,disk=ssd",
        details="Machines get labels from `worker --join ... --labels`",
        group="machines",
        metavar="LABELS",
        page="machines.md",
    )
    allow_pickle: bool = _models(
        False,
        "load scikit-learn models from pickles, which can run any code",
        details="Only for model files without servable_config.py",
        page="backends.md#rows-of-numbers",
    )
    backend: str = _models(
        "",
        "library that runs MindIR or ONNX files without servable_config.py",
        details="MindIR: mindspore or openvino; ONNX: onnxruntime or openvino",
        default_text="the first that is installed",
        choices=("mindspore", "onnxruntime", "openvino"),
        page="backends.md#mindir-without-mindspore",
    )
    python: str = _workers(
        "",
        "Python interpreter of the workers, a path or a name in PATH",
        details="It needs msgspec, numpy, protobuf and what the servable imports",
        default_text="that of the server",
        is_path=True,
        metavar="PYTHON",
        page="engines.md#an-interpreter",
    )
    environment: str = _workers(
        "",
        "directory with the pylock.toml, requirements.lock or requirements.txt of the workers",
        details="They run in an environment that is made from it once, based on `python`",
        is_path=True,
        metavar="DIR",
        page="engines.md#an-interpreter",
    )
    with_batch_dim: bool | None = _models(
        None,
        "the first axis of a model's inputs and outputs counts instances",
        default_text="decided by its shapes",
        details="Only for model files without servable_config.py; if False, a run has one instance "
        "of whole tensors",
        serve="batch_dim",
        page="backends.md#the-batch-dimension",
    )
    batch_axis: Mapping[str, int] | None = _models(
        None,
        "axis that counts instances, by input and output, as state=1,rate=-1",
        details="0 for those that are not named, -1 for an input without. Only for model files "
        "without servable_config.py",
        metavar="AXES",
        page="backends.md#the-batch-dimension",
    )
    network: str = param(
        "",
        "class of the Python file `servable_name`, or function that returns an object: an nn.Cell "
        "of MindSpore or an nn.Module of PyTorch",
        details="`serve` has it behind the file: net.py:Net. The file is run",
        serve=None,
    )
    weights: str = _models(
        "",
        "weights of a network in code, net.py:Net: .ckpt, .safetensors, .pt or .pth",
        default_text="the values of its constructor",
        is_path=True,
        page="networks.md",
    )
    arguments: Mapping[str, Any] | None = _models(
        None,
        "arguments of a network's constructor, as num_classes=10, or a JSON object",
        metavar="ARGUMENTS",
        parse=parse_arguments,
        page="networks.md",
    )
    inputs: Mapping[str, str] | None = _models(
        None,
        "inputs of a network, as 'x=float32[-1,1,28,28]', or x=@FILE.npy, an example batch",
        details="They are needed only where the code does not describe them. -1 is any size",
        metavar="INPUTS",
        parse=parse_inputs,
        page="networks.md",
    )
    mode: str = _models(
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
