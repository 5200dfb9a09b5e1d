"""The settings of each subcommand: frozen data, and the options that are made of its fields.

An option is written once, as a field; it knows no values beyond their types.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

_Settings = TypeVar("_Settings")
_Number = TypeVar("_Number", int, float)
_Kind = type[Any]
HTTP_PORT, GRPC_PORT = 1500, 5500


def _option(default: Any, text: str, **arguments: Any) -> Any:
    """A field that is `--name`; `arguments` go to argparse."""
    return field(default=default, metadata={"help": text, **arguments})


def _positional(text: str, **arguments: Any) -> Any:
    return field(metadata={"help": text, **arguments})


def _numbers(kind: type[_Number], example: str) -> Callable[[str], tuple[_Number, ...]]:
    """Reads numbers with commas between them."""

    def read(text: str) -> tuple[_Number, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: expected numbers as {example}") from None

    return read


_ids = _numbers(int, "0,1,2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a server is reached, besides its URL."""

    api_key: str = _option(
        "",
        "key of the server (default: that in MINDSPORE_SERVING_API_KEY)",
        metavar="KEY",
    )
    tls_ca: str | None = _option(None, "PEM authority to trust instead of the system's")
    tls_cert: str | None = _option(None, "PEM client certificate, for a server that demands one")
    tls_key: str | None = _option(None, "PEM private key of --tls-cert")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """`mindspore-serving serve`."""

    paths: Sequence[str] = _positional(
        "a servable, a language model's directory, or a directory of them",
        metavar="PATH",
        nargs="+",
    )
    host: str = _option("127.0.0.1", "address to listen on; 0.0.0.0 for every network")
    http_port: int = _option(HTTP_PORT, "port of the RESTful server")
    grpc_port: int = _option(GRPC_PORT, "port of the gRPC server")
    no_http: bool = _option(False, "no RESTful server")
    no_grpc: bool = _option(False, "no gRPC server")
    device_type: str | None = _option(
        None, "Ascend, GPU or CPU (default: the first that works)", metavar="TYPE"
    )
    device_ids: tuple[int, ...] = _option(
        (), "one worker process on each, as in 0,1 (default: 0)", type=_ids, metavar="IDS"
    )
    num_parallel_workers: int = _option(0, "processes per servable; on CPU each loads the models")
    max_workers: int = _option(0, "processes per servable follow the requests, up to so many")
    min_workers: int = _option(1, "... and down to so many; 0 ends all when nothing is asked")
    requests_per_worker: int = _option(8, "... with one for so many requests in flight")
    scale_down_delay: float = _option(60.0, "... and one less when so long fewer have done")
    max_batch_delay_ms: float = _option(
        0.0, "how long a request may wait for others to share its batch", metavar="MS"
    )
    preferred_batch_size: int = _option(0, "with a delay: send a batch as soon as it is this big")
    max_msg_mb: int = _option(100, "largest message in megabytes, 1 to 512", metavar="MB")
    max_enqueued_requests: int = _option(10_000, "requests in flight beyond which more are refused")
    max_requests: int = _option(0, "... of each servable; 0 for no limit of its own")
    shutdown_timeout: float = _option(25.0, "seconds from SIGTERM until all has ended")
    restart_policy: str = _option(
        "always",
        "whether workers that died are restarted: always, limited (to five quick deaths) or never",
        choices=("always", "limited", "never"),
        metavar="POLICY",
    )
    heartbeat_timeout: float = _option(
        10.0, "without a heartbeat for so long a worker gets no work; 3 times, and it is replaced"
    )
    stage_timeout: float = _option(0.0, "seconds that a stage may run; 0 for any")
    step_timeout: float = _option(300.0, "seconds that a step of a language model may run")
    limit: tuple[str, ...] = _option(
        (),
        "any field of ServerLimits or LanguageLimits, as head_timeout=10; see docs/limits.md; "
        "repeatable",
        action="append",
        metavar="NAME=VALUE",
    )
    http_status_codes: bool = _option(False, "answer errors over REST with 4xx and 5xx, not 200")
    tls_cert: str | None = _option(None, "PEM certificate of the server: turns TLS on")
    tls_key: str | None = _option(None, "PEM private key of --tls-cert")
    tls_ca: str | None = _option(None, "demand client certificates signed by this PEM authority")
    api_key: tuple[str, ...] = _option(
        (),
        "clients must send this key, except for health; visible in ps; repeatable",
        action="append",
    )
    api_key_file: str | None = _option(
        None, "a key in each line (default: those in MINDSPORE_SERVING_API_KEYS)"
    )
    allowed_host: tuple[str, ...] = _option(
        (), "name of the server, besides localhost and addresses; repeatable", action="append"
    )
    allow_origin: tuple[str, ...] = _option(
        (), "other site whose web pages may use the server, or *; repeatable", action="append"
    )
    max_n: int = _option(16, "language models: most answers to one prompt, 1 to 128")
    allow_priority: bool = _option(False, "language models: clients may set priorities")
    name: str = _option("", "what clients call it, if one servable is served", metavar="NAME")
    runtime: str = _option("", "language models: openvino, torch, mindspore or mindir")
    quantization: str = _option("", "language models: int8 or int4 weights", metavar="KIND")
    max_model_len: int = _option(0, "language models: most tokens of a prompt and its answer")
    llm_serving_form: str = _option(
        "r21",
        "streams of llm-serving: r21 (server-sent events) or bare (lines)",
        choices=("r21", "bare"),
        metavar="FORM",
    )
    llm_option: tuple[str, ...] = _option(
        (),
        "language models: any option of EngineConfig, as kv_cache_memory=2e9; repeatable",
        action="append",
        metavar="NAME=VALUE",
    )


@dataclass(frozen=True, slots=True)
class PredictSettings(Access):
    """`mindspore-serving predict`."""

    where: str = _positional("IP:PORT, unix:PATH, http://IP:PORT", metavar="WHERE")
    servable: str = _positional("the servable", metavar="SERVABLE")
    method: str = _positional("the method; of a bare model: predict", metavar="METHOD")
    inputs: str = _positional("a JSON object, an array of them, or -", metavar="INPUTS")
    servable_version: int = _option(0, "version of the servable; 0 is the newest")
    timeout: float = _option(60.0, "seconds to wait for the reply")
    tls: bool = _option(False, "gRPC over TLS")


@dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """`mindspore-serving quantize`."""

    source: str = _positional("directory with config.json and *.safetensors", metavar="SOURCE")
    target: str = _positional("directory to make", metavar="TARGET")
    mode: str = _option("int8", "int8 (a scale per row), int4 (a scale per 128 weights), float16")


@dataclass(frozen=True, slots=True)
class ConvertSettings:
    """`mindspore-serving convert`."""

    source: str = _positional("a MindIR file that is not encrypted", metavar="FILE.mindir")
    target: str = _positional("the file to make; weights go beside it", metavar="OUT.xml")


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """`mindspore-serving doctor`."""

    probe: bool = _option(False, "import each library to find its devices (takes seconds)")


@dataclass(frozen=True, slots=True)
class ChatSettings(Access):
    """`mindspore-serving chat`."""

    url: str = _positional("http://IP:PORT of the server", metavar="URL")
    prompt: str = _option("", "answer this and end", metavar="TEXT")
    model: str = _option("", "name of the model (default: the first)", metavar="NAME")
    system: str = _option("", "system prompt", metavar="TEXT")
    temperature: float | None = _option(
        None, "0 for the likeliest words (default: the server's)", type=float, metavar="T"
    )
    top_p: float | None = _option(
        None, "draw from the likeliest words that have this share", type=float, metavar="P"
    )
    max_tokens: int | None = _option(
        None, "longest answer (default: the server's)", type=int, metavar="N"
    )
    timeout: float = _option(300.0, "seconds to wait for more of an answer")


@dataclass(frozen=True, slots=True)
class BenchSettings(Access):
    """`mindspore-serving bench`."""

    url: str = _positional("http://IP:PORT, or .../model/NAME:METHOD", metavar="URL")
    protocol: str = _option(
        "chat",
        "chat, completions or tgi; a URL with /model/ is classic",
        choices=("chat", "completions", "tgi", "classic"),
        metavar="KIND",
    )
    model: str = _option("", "name of the model (default: the first)", metavar="NAME")
    concurrency: tuple[int, ...] = _option(
        (1, 4, 16, 32),
        "clients that send again when answered, a run for each",
        type=_ids,
        metavar="N,N",
    )
    rate: tuple[float, ...] = _option(
        (),
        "instead: requests per second at random times, a run for each",
        type=_numbers(float, "0.5,2"),
        metavar="R,R",
    )
    requests: int = _option(0, "sent in a run (default: 4 per client, 30 s of a rate; at least 8)")
    input_tokens: int = _option(256, "average length of the prompts made up")
    output_tokens: int = _option(128, "average length of the answers")
    spread: float = _option(0.0, "sigma of log-normal lengths, as 0.5; 0: all alike", metavar="S")
    shared_prefix: int = _option(0, "tokens at the beginning that all prompts share")
    prompts: str | None = _option(
        None, 'file with lines {"prompt": ..., "max_tokens": ...} to send instead'
    )
    body: str | None = _option(None, "JSON to send to a classic method")
    stop_at_end: bool = _option(False, "let the model end an answer before its length")
    seed: int = _option(0, "of prompts and times; the same seed gives the same requests")
    timeout: float = _option(600.0, "seconds until a request is cancelled")
    json: str | None = _option(None, "write the results there too")


def add_options(parser: argparse.ArgumentParser, kind: _Kind) -> None:
    """One argument of `parser` for each field of `kind`."""
    for one in sorted(fields(kind), key=lambda one: one.kw_only is True):  # `Access` is last
        arguments = dict(one.metadata)
        if one.default is MISSING:
            parser.add_argument(one.name, **arguments)
            continue
        if one.default not in (None, False, (), "") and "(default:" not in arguments["help"]:
            shown = one.default
            if isinstance(shown, tuple):
                shown = ",".join(map(str, shown))
            arguments["help"] += f" (default: {shown})"
        if isinstance(one.default, bool):
            arguments["action"] = "store_true"
        elif isinstance(one.default, int | float):
            arguments["type"] = type(one.default)
        if "action" not in arguments:
            arguments.setdefault("metavar", _metavar(one.name, one.default))
        flag = "--" + one.name.replace("_", "-")
        # "append" adds to a list; a tuple has to stand in for it only afterwards
        default = [] if arguments.get("action") == "append" else one.default
        parser.add_argument(flag, dest=one.name, default=default, **arguments)


def to_settings(kind: type[_Settings], arguments: argparse.Namespace) -> _Settings:
    """The parsed `arguments` as a `kind`."""
    values = {one.name: getattr(arguments, one.name) for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


def _metavar(name: str, default: object) -> str:
    if name.endswith("port"):
        return "PORT"
    known = {"host": "HOST", "timeout": "SECONDS"}
    return known.get(name, "N" if isinstance(default, int) else "FILE")
