"""The settings of each subcommand: frozen data, whose fields are its options."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindspore_serving.cli.options import (
    hidden,
    ids,
    option,
    own,
    own_path,
    pairs,
    path,
    positional,
)
from mindspore_serving.log.settings import FORMATS, NAMES
from mindspore_serving.servable.backend_choice import NAMES as BACKENDS

HTTP_PORT, GRPC_PORT = 1500, 5500
RUNTIMES = ("openvino", "torch", "mindspore", "mindir", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a server is reached, besides its URL."""

    api_key: str = option(
        "", "key of the server (default: that in MINDSPORE_SERVING_API_KEY)", metavar="KEY"
    )
    tls_ca: str | None = option(None, "PEM authority to trust instead of the system's")
    tls_cert: str | None = option(None, "PEM client certificate, for a server that demands one")
    tls_key: str | None = option(None, "PEM private key of --tls-cert")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """`mindspore-serving serve`."""

    paths: Sequence[str] = positional(
        "a servable, a model file, a language model's directory, or a directory of them",
        metavar="PATH",
        nargs="*",
    )
    config: str | None = option(
        None,
        "a YAML file with options and settings per servable; options given here come before it",
    )
    servables: tuple[Mapping[str, Any], ...] = hidden(())  # of the file: settings of each
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 for every network")
    http_port: int = option(HTTP_PORT, "port of the RESTful server")
    grpc_port: int = option(GRPC_PORT, "port of the gRPC server")
    no_http: bool = option(False, "no RESTful server")
    no_grpc: bool = option(False, "no gRPC server")
    front_ends: int = option(1, "processes that serve the ports; see docs/deploy.md")
    grpc_library: str = option(
        "grpcio", "pygrpc-native is faster; see docs/deploy.md", choices=("grpcio", "pygrpc-native")
    )
    wait: bool = option(False, "listen when everything is loaded, not before")
    device_type: str | None = own(
        None,
        "what the models run on (default: the first that works)",
        metavar="{Ascend,GPU,CPU}",
    )
    device_ids: tuple[int, ...] = own(
        (), "one worker process on each, as in 0,1 (default: 0)", type=ids, metavar="IDS"
    )
    num_parallel_workers: int = own(0, "processes per servable; on CPU each loads the models")
    max_workers: int = own(0, "processes per servable follow the requests, up to so many")
    min_workers: int = own(1, "... and down to so many; 0 ends all when nothing is asked")
    requests_per_worker: int = own(8, "... with one for so many requests in flight")
    scale_down_delay: float = own(60.0, "... and one less when so long fewer have done")
    max_batch_delay_ms: float = own(
        0.0, "how long a request may wait for others to share its batch", metavar="MS"
    )
    preferred_batch_size: int = own(0, "with a delay: send a batch as soon as it is this big")
    max_msg_mb: int = option(100, "largest message in megabytes, 1 to 512", metavar="MB")
    max_enqueued_requests: int = option(10_000, "requests in flight beyond which more are refused")
    max_requests: int = own(0, "... of each servable; 0 for no limit of its own")
    shutdown_timeout: float = option(25.0, "seconds from SIGTERM until all has ended")
    versions: str = own(
        "latest",
        "which version directories are served: latest, latest:N, all, or numbers as in 1,3",
        metavar="POLICY",
    )
    poll: float = option(
        0.0, "look for new, changed and removed servables and versions so often; 0 for never"
    )
    reload: bool = option(False, "for development: --poll 0.5")
    max_loaded: int = option(
        0, "most servables that have workers: those that were used last; 0 for all"
    )
    restart_policy: str = own(
        "always",
        "whether workers that died are restarted; limited: but for five quick deaths",
        choices=("always", "limited", "never"),
    )
    heartbeat_timeout: float = own(
        10.0,
        "without a heartbeat for so long a worker gets no work; 3 times, and it is replaced; 0 for "
        "never",
    )
    stage_timeout: float = own(0.0, "seconds that a stage may run; 0 for any")
    step_timeout: float = own(300.0, "seconds that a step of a language model may run; 0 for any")
    limit: tuple[str, ...] = option(
        (),
        "any field of ServerLimits or LanguageLimits, as head_timeout=10; see docs/limits.md; "
        "repeatable",
        action="append",
        metavar="NAME=VALUE",
    )
    log_level: str | None = option(
        None,
        "what is logged, of the workers too (default: that of the environment, else warning)",
        choices=tuple(NAMES),
    )
    log_format: str | None = option(
        None, "lines of the log: text (the default), or JSON objects", choices=FORMATS
    )
    access_log: bool = option(False, "a line for each response; nothing of bodies is in it")
    log_requests: bool = option(
        False, "a line for each request WITH ITS PROMPT OR VALUES: for debugging, not for people's"
    )
    vllm_metrics: bool = option(
        False, "/metrics has the numbers of language models under vLLM's names, too"
    )
    http_status_codes: bool = option(
        True, "answer errors below /model/ with 4xx and 5xx; the original had 200 for all"
    )
    tls_cert: str | None = path(None, "PEM certificate of the server: turns TLS on")
    tls_key: str | None = path(None, "PEM private key of --tls-cert")
    tls_ca: str | None = path(None, "demand client certificates signed by this PEM authority")
    api_key: tuple[str, ...] = option(
        (),
        "clients must send this key, except for health; visible in ps; repeatable",
        action="append",
    )
    api_key_file: str | None = path(
        None, "a key in each line (default: those in MINDSPORE_SERVING_API_KEYS)"
    )
    allowed_host: tuple[str, ...] = option(
        (), "name of the server, besides localhost and addresses; repeatable", action="append"
    )
    allow_origin: tuple[str, ...] = option(
        (), "other site whose web pages may use the server, or *; repeatable", action="append"
    )
    allow_loading: bool = option(
        False, "clients may load and unload servables, and change the log level"
    )
    allow_lora_loading: tuple[str, ...] = option(
        (),
        "clients may load and unload LoRA adapters that are below this directory; repeatable",
        action="append",
        metavar="DIRECTORY",
    )
    client_shared_memory: bool = option(
        False, "clients of protocol v2 may name shared memory of this machine for tensors"
    )
    worker_address: str | None = option(
        None,
        "where other machines join with `worker --join`: with TLS, and a token or --tls-ca",
        metavar="HOST:PORT",
    )
    token_file: str | None = path(
        None, "the token of those machines (default: that in MINDSPORE_SERVING_TOKEN)"
    )
    insecure: bool = option(False, "no TLS between workers and a --worker-address of this machine")
    local_slots: int | None = option(
        None,
        "most workers on this machine; 0 for none (default: any number)",
        type=int,
        metavar="N",
    )
    trace_endpoint: str = option(
        "",
        "send OpenTelemetry traces there, as http://collector:4318 (default: none are recorded, "
        "unless OTEL_TRACES_EXPORTER=otlp)",
        metavar="URL",
    )
    trace_ratio: float | None = option(
        None,
        "share of the requests without a traceparent that is traced, 0 to 1 (default: all)",
        type=float,
        metavar="R",
    )
    launcher: str = option(
        "local",
        "with a --worker-address, ray has machines of a Ray cluster join, as `worker --join` does",
        choices=("local", "ray"),
    )
    ray_address: str = option(
        "auto", "the Ray cluster (default: that of this machine)", metavar="HOST:PORT"
    )
    ray_machines: int = option(0, "so many machines of it; 0 for all that have --ray-slots")
    ray_slots: int = option(1, "most workers on each, which count as CPUs (GPUs) of Ray's")
    node_labels: tuple[tuple[str, str], ...] = own(
        (),
        "run on machines with these labels only, as zone=a,disk=ssd",
        type=pairs,
        metavar="LABELS",
    )
    allow_pickle: bool = own(
        False, "scikit-learn models may be pickles, which run any code that is in them"
    )
    backend: str | None = own(
        None,
        "of MindIR and ONNX files without servable_config.py (default: what is installed)",
        choices=BACKENDS,
    )
    batch_dim: bool = own(True, "model files alone: their first axes count instances")
    python: str = own_path(
        "",
        "the interpreter of the workers, a path or a name in PATH; see docs/engines.md (default: "
        "that of the server)",
        metavar="PYTHON",
    )
    environment: str = own_path(
        "",
        "workers run in an environment made of the requirements.txt or lock file there",
        metavar="DIR",
    )
    strict: bool = option(False, "end if any of the servables cannot be served (default: go on)")
    max_n: int = option(16, "language models: most answers to one prompt, 1 to 128")
    allow_priority: bool = option(False, "language models: clients may set priorities")
    allow_chat_template: bool = option(False, "language models: clients may give chat templates")
    name: str = own("", "what clients call it, if one servable is served", metavar="NAME")
    runtime: str | None = own(
        None,
        "language models: what computes (default: openvino); others: docs/hugging_face.md",
        choices=RUNTIMES,
    )
    upstream: str = own(
        "",
        "in place of a PATH: the API of another server, as http://host:port/v1, with --name; see "
        "docs/engines.md",
        metavar="URL",
    )
    engine: str = own(
        "",
        "language models: what serves them (default: ours); others: docs/engines.md",
        metavar="NAME",
    )
    engine_option: tuple[str, ...] = own(
        (),
        "language models: an option of that engine, by its own name; repeatable",
        action="append",
        metavar="NAME=VALUE",
    )
    quantization: str | None = own(
        None, "language models: weights of fewer bits", choices=("int8", "int4")
    )
    max_model_len: int = own(0, "language models: most tokens of a prompt and its answer")
    prefix_cache_dir: str = own_path(
        "",
        "language models: keep what was computed of prompts there, to be found after a restart",
        metavar="DIR",
    )
    prefix_cache_disk: float = own(
        4.0 * 2**30, "... in files of at most so many bytes (default: 4 GiB)", metavar="BYTES"
    )
    pinned_prompts: str = own_path(
        "",
        "language models: compute the prompts in this YAML file at the start, and keep them in the "
        "cache; see docs/llm.md",
    )
    deterministic: bool = own(
        False, "language models: the same tokens to the bit in any batch; with --runtime torch"
    )
    draft: str = own_path(
        "", "language models: a smaller one with the same tokenizer, which guesses", metavar="PATH"
    )
    adapter: tuple[str, ...] = own(
        (),
        "language models: serve the LoRA adapter in this directory, too; repeatable",
        action="append",
        metavar="NAME=DIRECTORY",
    )
    max_loras: int = own(
        0,
        "language models: most adapters at once (default: those of --adapter; 8 with "
        "--allow-lora-loading)",
    )
    llm_serving_form: str = option(
        "r21",
        "streams of llm-serving: server-sent events, or lines",
        choices=("r21", "bare"),
    )
    llm_option: tuple[str, ...] = own(
        (),
        "language models: any option of EngineConfig, as kv_cache_memory=2e9; repeatable",
        action="append",
        metavar="NAME=VALUE",
    )

    def parts(self) -> "Iterator[ServeSettings]":
        """The settings of servables that have the same ones."""
        if self.paths or self.upstream:
            yield self
        for one in self.servables:
            yield replace(self, **{"servables": (), "paths": (), "upstream": "", **one})
