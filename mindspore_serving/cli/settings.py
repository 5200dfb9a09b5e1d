"""The settings of each subcommand: frozen data, and the options that are made of its fields.

An option is written once, as a field; it knows no values beyond their types.
"""

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

_Settings = TypeVar("_Settings")
_Kind = type[Any]
HTTP_PORT, GRPC_PORT = 1500, 5500

_API_KEY = "key of the server (default: MINDSPORE_SERVING_API_KEY of the environment)"


def _option(default: Any, text: str, **arguments: Any) -> Any:
    """A field that is `--name`; `arguments` go to argparse."""
    return field(default=default, metadata={"help": text, **arguments})


def _positional(text: str, **arguments: Any) -> Any:
    return field(metadata={"help": text, **arguments})


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers as in 0,1,2") from None


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers as in 0.5,2") from None


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """`mindspore-serving serve`."""

    paths: Sequence[str] = _positional(
        "a servable, a language model's directory, or a directory of them",
        metavar="PATH",
        nargs="+",
    )
    host: str = _option("127.0.0.1", "address to listen on; 0.0.0.0 for every network")
    http_port: int = _option(HTTP_PORT, "port of the RESTful server", type=int)
    grpc_port: int = _option(GRPC_PORT, "port of the gRPC server", type=int)
    no_http: bool = _option(False, "no RESTful server", action="store_true")
    no_grpc: bool = _option(False, "no gRPC server", action="store_true")
    device_type: str | None = _option(
        None, "Ascend, GPU or CPU (default: the first that works)", metavar="TYPE"
    )
    device_ids: tuple[int, ...] = _option(
        (), "one worker process on each, as in 0,1 (default: 0)", type=_ids, metavar="IDS"
    )
    num_parallel_workers: int = _option(
        0, "worker processes per servable; on CPU each loads the models", type=int, metavar="N"
    )
    max_batch_delay_ms: float = _option(
        0.0, "how long a request may wait for others to share its batch", type=float, metavar="MS"
    )
    preferred_batch_size: int = _option(
        0, "with a delay: send a batch as soon as it is this big", type=int, metavar="N"
    )
    max_msg_mb: int = _option(100, "largest message in megabytes, 1 to 512", type=int, metavar="MB")
    max_enqueued_requests: int = _option(
        10_000, "requests in flight beyond which more are refused", type=int, metavar="N"
    )
    http_status_codes: bool = _option(
        False, "answer errors over REST with 4xx and 5xx, not 200", action="store_true"
    )
    tls_cert: str | None = _option(None, "PEM certificate of the server: turns TLS on")
    tls_key: str | None = _option(None, "PEM private key of --tls-cert")
    tls_ca: str | None = _option(None, "demand client certificates signed by this PEM authority")
    api_key: tuple[str, ...] = _option(
        (), "clients must send this key, on every route but /health; repeatable", action="append"
    )
    name: str = _option("", "what clients call it, if one servable is served", metavar="NAME")
    runtime: str = _option("", "language models: openvino, torch, mindspore or mindir")
    quantization: str = _option("", "language models: int8 or int4 weights", metavar="KIND")
    max_model_len: int = _option(
        0, "language models: most tokens of a prompt and its answer", type=int, metavar="N"
    )
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
class PredictSettings:
    """`mindspore-serving predict`."""

    where: str = _positional("IP:PORT, unix:PATH, http://IP:PORT", metavar="WHERE")
    servable: str = _positional("the servable", metavar="SERVABLE")
    method: str = _positional("the method; of a bare model: predict", metavar="METHOD")
    inputs: str = _positional("a JSON object, an array of them, or -", metavar="INPUTS")
    servable_version: int = _option(0, "version of the servable; 0 is the newest", type=int)
    timeout: float = _option(60.0, "seconds to wait for the reply", type=float)
    api_key: str = _option("", _API_KEY, metavar="KEY")
    tls: bool = _option(False, "gRPC over TLS", action="store_true")
    tls_ca: str | None = _option(None, "PEM authority to trust instead of the system's")
    tls_cert: str | None = _option(None, "PEM client certificate, for a server that demands one")
    tls_key: str | None = _option(None, "PEM private key of --tls-cert")


@dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """`mindspore-serving quantize`."""

    source: str = _positional("directory with config.json and *.safetensors", metavar="SOURCE")
    target: str = _positional("directory to make", metavar="TARGET")
    mode: str = _option("int8", "int8 (a scale per row), int4 (a scale per 128 weights), float16")


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """`mindspore-serving doctor`."""

    probe: bool = _option(
        False, "import each library and ask it for its devices (seconds)", action="store_true"
    )


@dataclass(frozen=True, slots=True)
class ChatSettings:
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
    timeout: float = _option(300.0, "seconds to wait for more of an answer", type=float)
    api_key: str = _option("", _API_KEY, metavar="KEY")
    tls_ca: str | None = _option(None, "PEM authority to trust instead of the system's")
    tls_cert: str | None = _option(None, "PEM client certificate, for a server that demands one")
    tls_key: str | None = _option(None, "PEM private key of --tls-cert")


@dataclass(frozen=True, slots=True)
class BenchSettings:
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
        "clients that ask again when answered, a run for each",
        type=_ids,
        metavar="N,N",
    )
    rate: tuple[float, ...] = _option(
        (),
        "instead: requests per second at random times, a run for each",
        type=_rates,
        metavar="R,R",
    )
    requests: int = _option(
        0,
        "requests of a run (default: 4 per client, 30 s of a rate; at least 8)",
        type=int,
        metavar="N",
    )
    input_tokens: int = _option(256, "average length of the prompts made up", type=int, metavar="N")
    output_tokens: int = _option(128, "average length of the answers", type=int, metavar="N")
    spread: float = _option(
        0.0, "sigma of log-normal lengths, as 0.5; 0: all alike", type=float, metavar="S"
    )
    shared_prefix: int = _option(
        0, "tokens at the beginning that all prompts share", type=int, metavar="N"
    )
    prompts: str | None = _option(
        None, 'lines of {"prompt": ..., "max_tokens": ...} to ask instead'
    )
    body: str | None = _option(None, "JSON to send to a classic method")
    stop_at_end: bool = _option(
        False, "let the model end an answer before its length", action="store_true"
    )
    seed: int = _option(
        0, "of prompts and times; the same seed asks the same", type=int, metavar="N"
    )
    timeout: float = _option(600.0, "seconds until a request is given up", type=float)
    json: str | None = _option(None, "write the results there too")
    api_key: str = _option("", _API_KEY, metavar="KEY")
    tls_ca: str | None = _option(None, "PEM authority to trust instead of the system's")
    tls_cert: str | None = _option(None, "PEM client certificate, for a server that demands one")
    tls_key: str | None = _option(None, "PEM private key of --tls-cert")


def add_options(parser: argparse.ArgumentParser, kind: _Kind) -> None:
    """One argument of `parser` for each field of `kind`."""
    for one in fields(kind):
        arguments = dict(one.metadata)
        if one.default is MISSING:
            parser.add_argument(one.name, **arguments)
            continue
        if one.default not in (None, False, (), "") and "(default:" not in arguments["help"]:
            shown = one.default
            if isinstance(shown, tuple):
                shown = ",".join(map(str, shown))
            arguments["help"] += f" (default: {shown})"
        if "action" not in arguments:
            arguments.setdefault("metavar", _metavar(one.name))
        flag = "--" + one.name.replace("_", "-")
        # "append" adds to a list; a tuple has to stand in for it only afterwards
        default = [] if arguments.get("action") == "append" else one.default
        parser.add_argument(flag, dest=one.name, default=default, **arguments)


def to_settings(kind: type[_Settings], arguments: argparse.Namespace) -> _Settings:
    """The parsed `arguments` as a `kind`."""
    values = {one.name: getattr(arguments, one.name) for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


def _metavar(name: str) -> str:
    return {"host": "HOST", "timeout": "SECONDS", "servable_version": "N"}.get(
        name, "PORT" if name.endswith("port") else "FILE"
    )
