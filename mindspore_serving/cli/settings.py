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


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """`mindspore-serving serve`."""

    paths: Sequence[str] = _positional(
        "a servable or a directory of them", metavar="PATH", nargs="+"
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


@dataclass(frozen=True, slots=True)
class PredictSettings:
    """`mindspore-serving predict`."""

    where: str = _positional("IP:PORT, unix:PATH, http://IP:PORT", metavar="WHERE")
    servable: str = _positional("the servable", metavar="SERVABLE")
    method: str = _positional("the method; of a bare model: predict", metavar="METHOD")
    inputs: str = _positional("a JSON object, an array of them, or -", metavar="INPUTS")
    servable_version: int = _option(0, "version of the servable; 0 is the newest", type=int)
    timeout: float = _option(60.0, "seconds to wait for the reply", type=float)
    tls: bool = _option(False, "gRPC over TLS", action="store_true")
    tls_ca: str | None = _option(None, "PEM authority to trust instead of the system's")
    tls_cert: str | None = _option(None, "PEM client certificate, for a server that demands one")
    tls_key: str | None = _option(None, "PEM private key of --tls-cert")


@dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """`mindspore-serving quantize`."""

    source: str = _positional("directory with config.json and *.safetensors", metavar="SOURCE")
    target: str = _positional("directory to make", metavar="TARGET")
    mode: str = _option("int8", "int8 (a scale per row) or int4 (a scale per 128 weights)")


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """`mindspore-serving doctor`."""

    probe: bool = _option(
        False, "import each library and ask it for its devices (seconds)", action="store_true"
    )


def add_options(parser: argparse.ArgumentParser, kind: _Kind) -> None:
    """One argument of `parser` for each field of `kind`."""
    for one in fields(kind):
        arguments = dict(one.metadata)
        if one.default is MISSING:
            parser.add_argument(one.name, **arguments)
            continue
        if one.default not in (None, False, (), ""):
            arguments["help"] += f" (default: {one.default})"
        if "action" not in arguments:
            arguments.setdefault("metavar", _metavar(one.name))
        flag = "--" + one.name.replace("_", "-")
        parser.add_argument(flag, dest=one.name, default=one.default, **arguments)


def to_settings(kind: type[_Settings], arguments: argparse.Namespace) -> _Settings:
    """The parsed `arguments` as a `kind`."""
    return kind(**{one.name: getattr(arguments, one.name) for one in fields(kind)})  # type: ignore[arg-type]


def _metavar(name: str) -> str:
    return {"host": "HOST", "timeout": "SECONDS", "servable_version": "N"}.get(
        name, "PORT" if name.endswith("port") else "FILE"
    )
