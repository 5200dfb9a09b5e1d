"""The settings of each subcommand: frozen data, whose fields are its options."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mindspore_serving.cli.options import option, positional
from mindspore_serving.core.servable_options import ServableOptions
from mindspore_serving.core.server_options import ServerOptions
from mindspore_serving.llm import catalog
from mindspore_serving.log.settings import FORMATS, NAMES

HTTP_PORT, GRPC_PORT = 1500, 5500
LANGUAGE = "language models"
ENGINE = "engine"  # the place where options of language models have the names of `EngineConfig`
RUNTIMES = (
    *(name for name, row in catalog.RUNTIMES.items() if not row.has_running_ranks),
    catalog.TRANSFORMERS,
)

_models: Any = partial(option, group="models")
_ports: Any = partial(option, group="ports")
_limits: Any = partial(option, group="limits")
_security: Any = partial(option, group="security")
_observing: Any = partial(option, group="observing")
_machines: Any = partial(option, group="machines")
_language: Any = partial(option, group=LANGUAGE)
_access: Any = partial(option, group="access to the server")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """How a client trusts a server and is trusted by it, besides the system's authorities."""

    tls_ca: str | None = _access(None, "PEM authority to trust instead of the system's")
    tls_cert: str | None = _access(None, "PEM client certificate, for a server that demands one")
    tls_key: str | None = _access(None, "PEM private key of --tls-cert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access(TlsFiles):
    """How a server is reached, besides its URL."""

    api_key: str = _access(
        "", "key of the server (default: that in MINDSPORE_SERVING_API_KEY)", metavar="KEY"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServableSettings(ServableOptions):
    """What `serve` is told of servables: of all, and in a configuration file of each."""

    versions: str = _models(
        "latest",
        "which version directories are served: latest, latest:N, all, or numbers as in 1,3",
        metavar="POLICY",
    )
    runtime: str | None = _language(
        None, "what computes (default: openvino); others: docs/hugging_face.md", choices=RUNTIMES
    )
    upstream: str = _models(
        "",
        "in place of a PATH: the API of another server, as http://host:port/v1, with --name; "
        "see docs/engines.md",
        metavar="URL",
    )
    engine: str = _language(
        "", "what serves them (default: ours); others: docs/engines.md", metavar="NAME"
    )
    engine_option: tuple[str, ...] = _language(
        (),
        "an option of that engine, by its own name; repeatable",
        metavar="NAME=VALUE",
        engine="engine_options",
    )
    quantization: str | None = _language(None, "weights of fewer bits", choices=("int8", "int4"))
    max_model_len: int = _language(
        0, "most tokens of a prompt and its answer", at_least=0, unit="tokens"
    )
    prefix_cache_dir: str = _language(
        "",
        "keep what was computed of prompts there, to be found after a restart",
        metavar="DIR",
        is_path=True,
    )
    prefix_cache_disk: float = _language(
        4.0 * 2**30,
        "... in files of at most so many bytes (default: 4 GiB)",
        at_least=0,
        unit="bytes",
        metavar="BYTES",
    )
    pinned_prompts: str = _language(
        "",
        "compute the prompts in this YAML file at the start, and keep them in the cache; see "
        "docs/llm.md",
        is_path=True,
    )
    deterministic: bool = _language(
        False, "the same tokens to the bit in any batch; with --runtime torch"
    )
    draft: str = _language(
        "", "a smaller one with the same tokenizer, which guesses", metavar="PATH", is_path=True
    )
    adapter: tuple[str, ...] = _language(
        (),
        "serve the LoRA adapter in this directory, too; repeatable",
        metavar="NAME=DIRECTORY",
        engine="adapters",
    )
    max_loras: int = _language(
        0,
        "most adapters at once (default: those of --adapter; 8 with --allow-lora-loading)",
        at_least=0,
    )
    llm_option: tuple[str, ...] = _language(
        (),
        "any option of EngineConfig, as kv_cache_memory=2e9; repeatable",
        metavar="NAME=VALUE",
        engine=None,
    )


@dataclass(frozen=True, kw_only=True)
class ServerSettings(ServerOptions):
    """What `serve` is told of the server."""

    host: str = _ports(
        "127.0.0.1", "address to listen on; 0.0.0.0 for every network", metavar="HOST"
    )
    http_port: int = _ports(
        HTTP_PORT, "port of the RESTful server", at_least=1, at_most=65535, metavar="PORT"
    )
    grpc_port: int = _ports(
        GRPC_PORT, "port of the gRPC server", at_least=1, at_most=65535, metavar="PORT"
    )
    no_http: bool = _ports(False, "no RESTful server")
    no_grpc: bool = _ports(False, "no gRPC server")
    wait: bool = _models(False, "listen when everything is loaded, not before")
    max_enqueued_requests: int = _limits(
        10000, "requests in flight beyond which more are refused", at_least=1
    )
    shutdown_timeout: float = _limits(
        25.0, "seconds from SIGTERM until all has ended", at_least=1, unit="seconds"
    )
    poll: float = _models(
        0.0,
        "look for new, changed and removed servables and versions so often; 0 for never",
        at_least=0,
        unit="seconds",
    )
    reload: bool = _models(False, "for development: --poll 0.5")
    max_loaded: int = _models(
        0, "most servables that have workers: those that were used last; 0 for all", at_least=0
    )
    limit: tuple[str, ...] = _limits(
        (),
        "any field of ServerLimits or LanguageLimits, as head_timeout=10; see docs/limits.md; "
        "repeatable",
        metavar="NAME=VALUE",
    )
    log_level: str | None = _observing(
        None,
        "what is logged, of the workers too (default: that of the environment, else warning)",
        choices=tuple(NAMES),
    )
    log_format: str | None = _observing(
        None, "lines of the log: text (the default), or JSON objects", choices=FORMATS
    )
    access_log: bool = _observing(False, "a line for each response; nothing of bodies is in it")
    log_requests: bool = _observing(
        False, "a line for each request WITH ITS PROMPT OR VALUES: for debugging, not for people's"
    )
    http_status_codes: bool = _ports(
        True, "answer errors below /model/ with 4xx and 5xx; the original had 200 for all"
    )
    tls_cert: str | None = _security(
        None, "PEM certificate of the server: turns TLS on", is_path=True
    )
    tls_key: str | None = _security(None, "PEM private key of --tls-cert", is_path=True)
    tls_ca: str | None = _security(
        None, "demand client certificates signed by this PEM authority", is_path=True
    )
    api_key: tuple[str, ...] = _security(
        (),
        "clients must send this key, except for health; visible in ps; repeatable",
        metavar="KEY",
    )
    api_key_file: str | None = _security(
        None, "a key in each line (default: those in MINDSPORE_SERVING_API_KEYS)", is_path=True
    )
    worker_address: str | None = _machines(
        None,
        "where other machines join with `worker --join`: with TLS, and a token or --tls-ca",
        metavar="HOST:PORT",
    )
    token_file: str | None = _machines(
        None, "the token of those machines (default: that in MINDSPORE_SERVING_TOKEN)", is_path=True
    )
    insecure: bool = _machines(
        False, "no TLS between workers and a --worker-address of this machine"
    )
    local_slots: int | None = _machines(
        None,
        "most workers on this machine; 0 for none (default: any number)",
        at_least=0,
        metavar="N",
    )
    trace_endpoint: str = _observing(
        "",
        "send OpenTelemetry traces there, as http://collector:4318 (default: none are recorded,"
        " unless OTEL_TRACES_EXPORTER=otlp)",
        metavar="URL",
    )
    trace_ratio: float | None = _observing(
        None,
        "share of the requests without a traceparent that is traced, 0 to 1 (default: all)",
        at_least=0,
        at_most=1,
        metavar="R",
    )
    launcher: str = _machines(
        "local",
        "with a --worker-address, ray has machines of a Ray cluster join, as `worker --join` does",
        choices=("local", "ray"),
    )
    ray_address: str = _machines(
        "auto", "the Ray cluster (default: that of this machine)", metavar="HOST:PORT"
    )
    ray_machines: int = _machines(
        0, "so many machines of it; 0 for all that have --ray-slots", at_least=0
    )
    ray_slots: int = _machines(
        1, "most workers on each, which count as CPUs (GPUs) of Ray's", at_least=1
    )
    strict: bool = _models(False, "end if any of the servables cannot be served (default: go on)")


@dataclass(frozen=True, kw_only=True)
class ServeSettings(ServerSettings, ServableSettings):
    """`mindspore-serving serve`."""

    paths: Sequence[str] = positional(
        "a servable, a model file, a language model's directory, or a directory of them",
        metavar="PATH",
        nargs="*",
    )
    config: str | None = _models(
        None,
        "a YAML file with options and settings per servable; options given here come before it",
    )
    servables: tuple[Mapping[str, Any], ...] = ()  # of the file: settings of each

    def parts(self) -> "Iterator[ServeSettings]":
        """The settings of servables that have the same ones."""
        if self.paths or self.upstream:
            yield self
        for one in self.servables:
            yield replace(self, **{"servables": (), "paths": (), "upstream": "", **one})
