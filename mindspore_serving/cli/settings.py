"""Settings of `serve`, and options that several subcommands share: frozen data.

Each field is a row of the table of options: see `cli.options`.
"""

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
ENGINE = "engine"  # the interface in which options have the names of `EngineConfig`
RUNTIMES = (
    *(name for name, row in catalog.RUNTIMES.items() if not row.has_running_ranks),
    catalog.TRANSFORMERS,
)

_models: Any = partial(option, group="models")
_ports: Any = partial(option, group="ports")
_port: Any = partial(_ports, at_least=1, at_most=65535, metavar="PORT", is_common=True)
_limits: Any = partial(option, group="limits")
_security: Any = partial(option, group="security")
_observing: Any = partial(option, group="observing")
_machines: Any = partial(option, group="machines")
_language: Any = partial(option, group=LANGUAGE)
_access: Any = partial(option, group="access to the server")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Certificates with which a client trusts a server, and is trusted by it."""

    tls_ca: str | None = _access(
        None, "PEM authority that signed the server's certificate", default_text="the system's"
    )
    tls_cert: str | None = _access(None, "PEM client certificate, for a server that requires one")
    tls_key: str | None = _access(None, "PEM private key of --tls-cert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access(TlsFiles):
    """Certificates and API key for a server."""

    api_key: str = _access(
        "",
        "API key of the server",
        default_text="the variable MINDSPORE_SERVING_API_KEY",
        metavar="KEY",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServableSettings(ServableOptions):
    """Options of `serve` for servables: on the command line for all, in a file for each."""

    versions: str = _models(
        "latest",
        "versions: latest, latest:N, all, or numbers as 1,3",
        metavar="POLICY",
        is_common=True,
        page="repository.md",
    )
    offline: bool = _models(
        False,
        "use names of models that were downloaded before, and no network",
        details="The variable HF_HUB_OFFLINE=1 does the same",
        page="models_by_name.md",
    )
    runtime: str | None = _language(
        None,
        "runtime that computes the model",
        default_text=catalog.AUTO,
        choices=(catalog.AUTO, *RUNTIMES),
        metavar="NAME",
        is_common=True,
        page="hugging_face.md",
    )
    upstream: tuple[str, ...] = _models(
        (),
        "instead of a PATH: serve the model of another server at http://host:port/v1",
        details="It needs --name. Several are a fleet, each as URL,weight=N; dns://, kubernetes:// "
        "and file:// URLs name several",
        metavar="URL",
        page="fleet.md",
    )
    engine: str = _language(
        "",
        f"engine: {', '.join((catalog.OURS, *catalog.ENGINES))}",
        default_text=catalog.OURS,
        metavar="NAME",
        is_common=True,
        page="engines.md#an-engine",
    )
    engine_option: tuple[str, ...] = _language(
        (),
        "option of another engine, by that engine's name for it",
        metavar="NAME=VALUE",
        engine="engine_options",
        page="engines.md#an-engine",
    )
    quantization: str | None = _language(
        None,
        "quantize weights to 8 or 4 bits",
        default_text="as in the checkpoint",
        choices=("int8", "int4"),
        is_common=True,
        page="language_models.md#options",
    )
    max_model_len: int = _language(
        0, "max tokens of a prompt with its completion",
        default_text="0, the model's", at_least=0, unit="tokens", is_common=True,
    )  # fmt: skip
    prefix_cache_dir: str = _language(
        "",
        "keep cached prompts in this directory, so that they survive a restart",
        metavar="DIR",
        is_path=True,
        page="prefix_cache.md#after-a-restart",
    )
    prefix_cache_disk: float = _language(
        4.0 * 2**30,
        "max size of all files in that directory",
        at_least=0,
        unit="bytes",
        metavar="BYTES",
    )
    prefix_cache_store: str = _language(
        "", "store of cached prompts that servers share: redis://, file://, s3:// and others",
        metavar="URL", page="prefix_cache.md#shared-by-servers",
    )  # fmt: skip
    prefix_cache_store_key: str = _language(
        "", "file of a secret: blocks of a store that were written without it are not read",
        metavar="FILE", is_path=True, page="prefix_cache.md#shared-by-servers",
    )  # fmt: skip
    pinned_prompts: str = _language(
        "",
        "YAML file of prompts that are computed at start and stay in the cache",
        is_path=True,
        page="prefix_cache.md#pinned-prompts",
    )
    memory: str = _language(
        "auto", "low: keep no copy of weights beside the mapped file, a quantised GGUF file",
        choices=("auto", "low"), page="llm.md#runtimes",
    )  # fmt: skip
    deterministic: bool = _language(
        False,
        "make answers the same to the bit in any batch; needs --runtime torch or a quantised GGUF",
        page="llm.md#the-same-to-the-bit",
    )
    draft: str = _language(
        "",
        "smaller model with the same tokenizer that proposes draft tokens",
        metavar="PATH",
        is_path=True,
        is_common=True,
        page="speculation.md",
    )
    mmproj: str = _language(
        "", "vision tower of a GGUF model, as llama.cpp's converter writes it", metavar="FILE",
        default_text="the file beside the model with mmproj in its name", is_path=True,
        page="images.md#gguf-files",
    )  # fmt: skip
    adapter: tuple[str, ...] = _language(
        (), "serve this LoRA adapter too", metavar="NAME=DIR", engine="adapters", is_common=True,
        page="adapters.md",
    )  # fmt: skip
    max_loras: int = _language(
        0,
        "max LoRA adapters at once",
        default_text="those of --adapter; 8 with --allow-lora-loading",
        at_least=0,
        page="adapters.md",
    )
    llm_option: tuple[str, ...] = _language(
        (),
        "any other option of the engine, as kv_cache_memory=2e9",
        metavar="NAME=VALUE",
        engine=None,
        is_common=True,
        page="llm.md#options",
    )


@dataclass(frozen=True, kw_only=True)
class ServerSettings(ServerOptions):
    """Options of `serve` for the server."""

    host: str = _ports(
        "127.0.0.1",
        "address to listen on; 0.0.0.0 for every network",
        metavar="HOST",
        is_common=True,
    )
    port: int = _port(
        0,
        "one port for REST and gRPC, in place of --http-port and --grpc-port",
        default_text="two ports",
        at_least=0,
        page="deploy.md#one-port",
    )
    http_port: int = _port(HTTP_PORT, "port of the REST server")
    grpc_port: int = _port(GRPC_PORT, "port of the gRPC server")
    no_http: bool = _ports(False, "do not start the REST server")
    no_grpc: bool = _ports(False, "do not start the gRPC server")
    wait: bool = _models(False, "open the ports only when all models can be used, upstreams too")
    max_enqueued_requests: int = _limits(
        10000,
        "max requests in flight of the server",
        details="Further requests are refused",
        at_least=1,
        is_common=True,
    )
    shutdown_timeout: float = _limits(
        25.0, "max time from SIGTERM to the end of the server", at_least=1, unit="seconds"
    )
    shutdown_delay: float = _limits(
        0.0, "time of these in which the server reports not ready, but still accepts connections",
        default_text="0, none", at_least=0, unit="seconds", page="deploy.md#behind-a-balancer",
    )  # fmt: skip
    poll: float = _models(
        0.0,
        "look for new and changed models at this interval",
        default_text="0, never",
        at_least=0,
        unit="seconds",
        is_common=True,
        page="repository.md",
    )
    reload: bool = _models(False, "for development: the same as --poll 0.5")
    max_loaded: int = _models(
        0,
        "max servables that have workers; the least recently used ones lose them",
        default_text="0, no limit",
        at_least=0,
        page="repository.md#more-models-than-there-is-memory-for",
    )
    limit: tuple[str, ...] = _limits(
        (),
        "any limit of connections and requests, as head_timeout=10",
        metavar="NAME=VALUE",
        is_common=True,
        page="limits.md",
    )
    log_level: str | None = _observing(
        None,
        "log level",
        details="Workers have the same. Environment variables set the default",
        default_text="warning",
        choices=tuple(NAMES),
        metavar="LEVEL",
        is_common=True,
        page="logging.md",
    )
    log_format: str | None = _observing(
        None,
        "format of log lines",
        default_text="text",
        choices=FORMATS,
        page="logging.md",
    )
    access_log: bool = _observing(
        False,
        "log a line for each response, without bodies",
        is_common=True,
        page="logging.md",
    )
    log_requests: bool = _observing(
        False,
        "log prompts and values of all requests: for debugging only",
        page="logging.md",
    )
    http_status_codes: bool = _ports(
        True,
        "answer errors below /model/ with status 4xx and 5xx",
        details="With --no-http-status-codes the status is 200, as in MindSpore Serving 2.0",
        page="restful.md",
    )
    tls_cert: str | None = _security(
        None, "PEM certificate of the server; turns TLS on", is_path=True, is_common=True
    )
    tls_key: str | None = _security(
        None, "PEM private key of --tls-cert", is_path=True, is_common=True
    )
    tls_ca: str | None = _security(
        None, "PEM authority that must have signed the certificate of each client", is_path=True
    )
    api_key: tuple[str, ...] = _security(
        (),
        "API key that clients must send, except for health checks",
        details="Every user of the machine can see it in ps: prefer --api-key-file",
        metavar="KEY",
        page="restful.md#keys",
    )
    api_key_file: str | None = _security(
        None,
        "file of API keys, one per line or YAML: clients must send one",
        details="Without it the keys in the variable MINDSPORE_SERVING_API_KEYS count",
        is_path=True,
        is_common=True,
        page="tenants.md",
    )
    worker_address: str | None = _machines(
        None,
        "listen here for machines that join with `worker --join`",
        details="It needs TLS, and a token or --tls-ca",
        metavar="HOST:PORT",
        is_common=True,
        page="machines.md",
    )
    token_file: str | None = _machines(
        None,
        "file with the token that joining machines must have",
        default_text="the variable MINDSPORE_SERVING_TOKEN",
        is_path=True,
        page="machines.md",
    )
    insecure: bool = _machines(
        False, "let workers join without TLS, if --worker-address is of this machine"
    )
    local_slots: int | None = _machines(
        None,
        "max workers on this machine; 0 for none",
        default_text="no limit",
        at_least=0,
        metavar="N",
        page="machines.md",
    )
    trace_endpoint: str = _observing(
        "",
        "send OpenTelemetry traces to this URL, as http://collector:4318",
        details="Without it traces are sent only if OTEL_TRACES_EXPORTER=otlp",
        metavar="URL",
        page="tracing.md",
    )
    trace_ratio: float | None = _observing(
        None,
        "share of requests without a traceparent that is traced, 0 to 1",
        default_text="all",
        at_least=0,
        at_most=1,
        metavar="R",
        page="tracing.md",
    )
    launcher: str = _machines(
        "local",
        "ray: have the machines of a Ray cluster join --worker-address",
        choices=("local", "ray"),
        page="machines.md",
    )
    ray_address: str = _machines(
        "auto",
        "address of the Ray cluster",
        default_text="auto, that of this machine",
        metavar="HOST:PORT",
    )
    ray_machines: int = _machines(
        0,
        "number of machines of the Ray cluster to use",
        default_text="0, all with --ray-slots",
        at_least=0,
    )
    ray_slots: int = _machines(
        1, "max workers per machine; each takes a CPU or GPU of Ray's", at_least=1
    )
    strict: bool = _models(False, "end if any servable cannot be served, instead of leaving it out")


@dataclass(frozen=True, kw_only=True)
class ServeSettings(ServerSettings, ServableSettings):
    """Settings of `mindspore-serving serve`."""

    paths: Sequence[str] = positional(
        "servable, model file or checkpoint, a directory or archive of these; or a model by its "
        "name, as ORG/NAME",
        metavar="PATH",
        nargs="*",
    )
    config: str | None = _models(
        None,
        "YAML file with options, and settings per servable",
        details="Options on the command line override it",
        is_common=True,
        page="configuration.md",
    )
    servables: tuple[Mapping[str, Any], ...] = ()  # of the file: settings of each

    def parts(self) -> "Iterator[ServeSettings]":
        """Iterate over the settings of the paths of the command line, then of each in a file."""
        if self.paths or self.upstream:
            yield self
        for servable in self.servables:
            yield replace(self, **{"servables": (), "paths": (), "upstream": (), **servable})
