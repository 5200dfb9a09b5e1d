"""Options of the workers of a servable: where they run, how many, and how requests wait for them.

Checks nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from mindspore_serving.core.params import param

models: Any = partial(param, group="models")
workers: Any = partial(param, group="workers")
batching: Any = partial(param, group="batching", is_common=True)
limits: Any = partial(param, group="limits", is_common=True)


@dataclass(frozen=True, slots=True, eq=False)
class WorkerOptions:
    """Options of a servable that do not depend on its model; the first are of the original API."""

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
    device_ids: int | Sequence[int] | None = workers(
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
    device_type: str | None = workers(
        None,
        "run models on Ascend, GPU or CPU",
        default_text="the first that works",
        metavar="TYPE",
        is_common=True,
    )
    num_parallel_workers: int = workers(
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
    max_batch_delay_ms: float = batching(
        0,
        "max time that requests wait for a larger batch",
        default_text="0, no wait",
        at_least=0,
        unit="milliseconds",
        metavar="MS",
        page="servable_config.md#batching",
    )
    preferred_batch_size: int = batching(
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
    restart_policy: str = workers(
        "always",
        "when to restart a worker that died",
        details="always: after a delay that grows to 30 s while it dies soon each time; limited: "
        "not after five deaths within 10 s of their starts; never",
        choices=("always", "limited", "never"),
        page="reliability.md",
    )
    max_requests: int = limits(
        0,
        "max requests in flight per servable",
        details="Further requests are refused",
        default_text="0, no limit",
        at_least=0,
        load="max_requests",
        page="reliability.md#overload",
    )
    max_queue_seconds: float = limits(
        0,
        "refuse a request that has been queued this long",
        details="The queue of a method, of a worker and of a language model's engine count",
        default_text="0, never",
        at_least=0,
        unit="seconds",
        load="max_queue_seconds",
        page="reliability.md#overload",
        is_common=False,
    )
    priority_levels: int = batching(
        0,
        "number of priority levels of queued requests: 1 runs first",
        details="Requests of a lower level wait until none of a higher one is queued. Not for "
        "methods that stream",
        default_text="0, first come, first served",
        at_least=0,
        at_most=64,
        page="servable_config.md#priorities",
        is_common=False,
    )
    default_priority: int = batching(
        0,
        "level of requests that name none",
        default_text="0, the last",
        at_least=0,
        at_most=64,
        page="servable_config.md#priorities",
        is_common=False,
    )
    level_queue_ms: Mapping[str, int] | None = batching(
        None,
        "milliseconds after which a queued request is refused, by level, as 1=200,3=30000",
        metavar="LEVELS",
        page="servable_config.md#priorities",
        is_common=False,
    )
    level_queue_sizes: Mapping[str, int] | None = batching(
        None,
        "max number of queued requests, by level, as 3=16; further ones are refused",
        metavar="LEVELS",
        page="servable_config.md#priorities",
        is_common=False,
    )
    cache_mb: float = limits(
        0,
        "max size of the answers that are kept for equal requests, per method",
        details="Methods that stream or are declared with retry=False have no cache",
        default_text="0, no cache",
        at_least=0,
        at_most=1 << 20,
        unit="MiB",
        metavar="MB",
        page="servable_config.md#a-cache-of-answers",
        is_common=False,
    )
    cache_seconds: float = limits(
        600,
        "with `cache_mb`: time for which an answer is kept",
        over=0,
        at_most=1e9,
        unit="seconds",
        page="servable_config.md#a-cache-of-answers",
        is_common=False,
    )
    cache_per_key: bool = limits(
        False,
        "with `cache_mb`: a request gets no answer to a request with another API key",
        page="servable_config.md#a-cache-of-answers",
        is_common=False,
    )
    cache_store: str = limits(
        "",
        "with `cache_mb`: URL of a store of answers that servers share, as rediss://HOST:6379/0",
        details="Or valkeys://, file:///DIRECTORY, s3:// and others. Methods that call other "
        "servables, and servables on other machines, do not use it",
        metavar="URL",
        is_secret=True,
        page="servable_config.md#a-store-of-answers",
        is_common=False,
    )
    cache_store_key: str = limits(
        "",
        "file of a secret that all servers of `cache_store` share: answers of others are not read",
        is_path=True,
        metavar="FILE",
        page="servable_config.md#a-store-of-answers",
        is_common=False,
    )
    cache_store_mb: float = limits(
        1024,
        "max size of `cache_store`, values of others included",
        details="A server with an eviction policy has its limit itself",
        at_least=64,
        unit="MiB",
        serve=None,
        page="servable_config.md#a-store-of-answers",
        is_common=False,
    )
    cache_store_timeout: float = limits(
        0.1,
        "max time that a request waits for `cache_store`; then it is computed",
        over=0,
        at_most=60,
        unit="seconds",
        page="servable_config.md#a-store-of-answers",
        is_common=False,
    )
    heartbeat_timeout: float = workers(
        10,
        "time without a heartbeat after which a worker gets no new requests",
        details="Its queued requests go to other workers; after three times as long it is killed "
        "and replaced. 0 disables this",
        at_least=0,
        unit="seconds",
        load="heartbeat_timeout",
    )
    stage_timeout: float = workers(
        0,
        "max time that a stage may run",
        details="A worker that takes longer is killed and replaced, and its running requests fail",
        default_text="0, no limit",
        at_least=0,
        unit="seconds",
        load="stage_timeout",
    )
    step_timeout: float = workers(
        300,
        "max time of one step of a language model, as `stage_timeout`",
        at_least=0,
        unit="seconds",
        load="step_timeout",
    )
    alias: str = models(
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
    rank_machines: int = workers(
        1,
        "machines over which the ranks of a language model are placed",
        details="Stages of `pipeline_parallel` are divided over so many, or without stages the "
        "ranks of `tensor_parallel`. When a machine is lost they are placed on those left",
        at_least=1,
        at_most=64,
        page="parallel.md#several-machines",
        is_common=False,
    )
    cores: str = workers(
        "",
        "cores of each worker, as '0-3;4-7': a set for each, in turn; numa: a NUMA node each",
        details="The threads of a worker run on its cores only",
        default_text="all",
        metavar="SETS",
        page="servable_config.md#cores-of-workers",
    )
    model_threads: int = workers(
        0,
        "threads of a model file's runtime, in each worker",
        details="In place of the `thread_num` of a Context",
        default_text="0, the runtime's default",
        at_least=0,
        at_most=1024,
        page="backends.md#precision",
    )
    roles: Mapping[str, int] | None = workers(
        None,
        "workers of a language model that compute prompts, and that decode: prefill=1,decode=2",
        details="A prompt goes to a worker that decodes, which lets another compute it where that "
        "is faster for its streams, by measured costs",
        default_text="all do both",
        metavar="ROLES",
        page="roles.md",
        is_common=False,
    )
    resources: Mapping[str, int] | None = workers(
        None,
        "shared resources that a worker needs to run, as npu0=1",
        details="Workers of all servables that need more than there is take turns",
        metavar="NEEDS",
        page="servable_config.md#shared-resources",
    )
    resource_counts: Mapping[str, int] | None = workers(
        None,
        "number of each resource in all, as npu0=2",
        details="The largest number of all servables counts",
        default_text="the most that a servable needs",
        metavar="COUNTS",
        page="servable_config.md#shared-resources",
    )
    max_workers: int = workers(
        0,
        "scale the number of workers with the requests, up to this number",
        details="Each worker loads all models and, with `device_ids`, has a device of its own. Not "
        "with `num_parallel_workers`",
        default_text="0, a fixed number",
        at_least=0,
        at_most=64,
        page="servable_config.md#as-many-workers-as-there-are-requests-for",
    )
    min_workers: int = workers(
        1,
        "with `max_workers`: number of workers kept while there are few requests",
        details="With 0 all workers end, and the next request waits until one has started",
        at_least=0,
        at_most=64,
    )
    requests_per_worker: int = workers(
        8, "with `max_workers`: requests in flight for which one worker is started", at_least=1
    )
    scale_down_delay: float = workers(
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
