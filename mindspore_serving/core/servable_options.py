"""What can be asked of a servable: one table, each row a field of `ServableOptions`.

`ServableStartConfig`, `Deployment`, the options of `serve`, configuration files with their schema
and what a load of protocol v2 may change are made from the rows.  Checks nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from mindspore_serving.core.params import param, rows_of

_models: Any = partial(param, group="models")
_workers: Any = partial(param, group="workers")


@dataclass(frozen=True, slots=True, eq=False)
class ServableOptions:
    """Of one version of one servable.  The first ones are in the order of the original."""

    servable_directory: str = param(
        "", "holds the servable's directory; may be relative to the start-up script", serve=None
    )
    servable_name: str = param(
        "",
        "the servable's directory in it, which holds servable_config.py and version directories "
        "such as 1/ with the model files.  Without servable_config.py, a directory with one model "
        'file, in it or in 1/, is served as it is; so is a model file itself, as "net.onnx"',
        serve=None,
    )
    device_ids: int | Sequence[int] | None = _workers(
        None,
        "one worker process on each: different numbers from 0 on, as 0,1 (default of serve: 0)",
        metavar="IDS",
    )
    version_number: int = param(
        0, "the version, or 0 for the newest directory at start", at_least=0, serve=None
    )
    device_type: str | None = _workers(
        None,
        "what the models run on, in any case (default: the first that works)",
        metavar="{Ascend,GPU,CPU}",
    )
    num_parallel_workers: int = _workers(
        0,
        "as many worker processes in all; those beyond the devices run Python stages and, on CPU, "
        "models.  Without devices, 0 means 1",
        at_least=0,
        at_most=64,
    )
    dec_key: bytes | None = param(
        None,
        "the key of an encrypted model: 16, 24 or 32 bytes",
        is_secret=True,
        serve=None,
    )
    dec_mode: str = param("AES-GCM", '"AES-GCM" or "AES-CBC"', serve=None)
    _: KW_ONLY
    max_batch_delay_ms: float = param(
        0,
        "how long a request may wait for others to share its batch; 0 takes whatever is queued",
        at_least=0,
        unit="milliseconds",
        group="batching",
        metavar="MS",
    )
    preferred_batch_size: int = param(
        0,
        "with a delay, send a batch as soon as it has so many instances; 0: the model's size",
        at_least=0,
        at_most=1 << 16,
        group="batching",
    )
    retry: bool = param(
        True,
        "whether instances that a dying worker had are sent to another one",
        serve=None,
        load="retry",
    )
    restart_policy: str = _workers(
        "always",
        "whether a worker that died is started again: always (ever later, at most every 30 s, if "
        "it dies soon each time), limited (not after five deaths within 10 s of their starts) or "
        "never",
        choices=("always", "limited", "never"),
    )
    max_requests: int = param(
        0,
        "the most requests in flight to a servable, beyond which more are refused; 0 for no limit "
        "but the server's",
        at_least=0,
        group="limits",
        load="max_requests",
    )
    max_queue_seconds: float = param(
        0,
        "refuse a request that after so long still waits for its turn, in the queue of a method, "
        "a worker or a language model's engine; 0 for no limit",
        at_least=0,
        unit="seconds",
        group="limits",
        load="max_queue_seconds",
    )
    heartbeat_timeout: float = _workers(
        10,
        "without a heartbeat for so long a worker gets no new work, and what waits there goes to "
        "others; after three times as long it is ended and replaced.  0: never",
        at_least=0,
        unit="seconds",
        load="heartbeat_timeout",
    )
    stage_timeout: float = _workers(
        0,
        "how long a stage may run: the worker is then ended and replaced, and the requests that "
        "ran fail.  0: any time",
        at_least=0,
        unit="seconds",
        load="stage_timeout",
    )
    step_timeout: float = _workers(
        300,
        "as the stage timeout, for a step of a language model",
        at_least=0,
        unit="seconds",
        load="step_timeout",
    )
    alias: str = _models(
        "",
        "what clients call it, if one servable is served (default: the name of its directory, or "
        "of a model file without its ending)",
        metavar="NAME",
        serve="name",
    )
    llm_options: Mapping[str, Any] | None = param(
        None,
        "for a GGUF file or a bare Hugging Face directory (config.json, *.safetensors): the "
        'options of `EngineConfig`, such as {"quantization": "int8"}, "runtime", or "engine" with '
        '"engine_options"; of a model that does not generate also those of '
        '`tasks.options.TaskOptions`.  With engine "openai", and engine_options with the `url` of '
        "another server, there is no directory: `servable_name` is what clients call its model",
        is_secret=True,
        serve=None,
    )
    max_workers: int = _workers(
        0,
        "over 0: the number of worker processes, each with all models, follows that of requests, "
        "up to so many, each with a device if there are any; not with num_parallel_workers.  0: it "
        "stays",
        at_least=0,
        at_most=64,
    )
    min_workers: int = _workers(
        1,
        "... and down to so many; 0 ends all, and a request then waits for a start",
        at_least=0,
        at_most=64,
    )
    requests_per_worker: int = _workers(
        8, "... with one worker for so many requests in flight", at_least=1
    )
    scale_down_delay: float = _workers(
        60,
        "... and one less when for so long fewer have done",
        at_least=0,
        unit="seconds",
    )
    node_labels: Mapping[str, str] | None = param(
        None,
        "run on machines with these labels only (`worker --join ... --labels`), as zone=a,disk=ssd",
        group="machines",
        metavar="LABELS",
    )
    allow_pickle: bool = _models(
        False,
        "whether a scikit-learn model without servable_config.py may be a pickle, which runs any "
        "code that is in it",
    )
    backend: str = _models(
        "",
        "what runs a model without servable_config.py: mindspore or openvino for MindIR, "
        "onnxruntime or openvino for ONNX (default: what is installed, in this order)",
        choices=("mindspore", "onnxruntime", "openvino"),
    )
    python: str = _workers(
        "",
        "the interpreter of the workers, a path or a name in PATH; it needs msgspec, numpy and "
        "protobuf beside what the servable imports; see docs/engines.md (default: that of the "
        "server)",
        is_path=True,
        metavar="PYTHON",
    )
    environment: str = _workers(
        "",
        "a directory with a pylock.toml, requirements.lock or requirements.txt: the workers run in "
        "an environment made of it, once, with `python` as its base",
        is_path=True,
        metavar="DIR",
    )
    with_batch_dim: bool = _models(
        True,
        "whether the first axis of what a model without servable_config.py takes and gives counts "
        "instances; else each run has one instance",
        serve="batch_dim",
    )

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.alias or self.servable_name


SERVABLE = rows_of(ServableOptions)
