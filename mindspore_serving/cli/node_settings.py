"""Settings of the subcommands for running servers and their machines."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mindspore_serving.cli.options import option, positional
from mindspore_serving.cli.settings import Access, TlsFiles
from mindspore_serving.cli.urls import SERVER_URL
from mindspore_serving.errors import InvalidInputs

_TIMEOUT: Any = partial(option, metavar="SECONDS", unit="seconds")


def url_argument(text: str) -> Any:
    """Make the field of the argument URL, which comes first and can be left out."""
    return positional(text, metavar="URL", nargs="?", default=SERVER_URL)


@dataclass(frozen=True, slots=True)
class WorkerSettings(TlsFiles):
    """Settings of `mindspore-serving worker`."""

    join: str = option("", "the server's --worker-address", metavar="HOST:PORT")
    name: str = option(
        "", "name of this machine, different for each", default_text="its host name", metavar="NAME"
    )
    slots: int = option(
        0,
        "max workers, or ranks of workers, at once",
        default_text="0, one per device id, else per core",
    )
    device_type: str | None = option(
        None,
        "run only workers for Ascend, GPU or CPU, or for any device",
        default_text="no restriction",
        metavar="TYPE",
    )
    device_ids: tuple[int, ...] = option(
        (),
        "devices of this machine, as 0,1",
        details="A worker that needs a device gets a free one, whatever its number on the server",
        metavar="IDS",
    )
    labels: Mapping[str, str] = option(
        {},
        "labels that servables can require by --node-labels, as zone=a,disk=ssd",
        metavar="LABELS",
    )
    servables: str | None = option(
        None,
        "the only directory from which servables are loaded",
        default_text="the server's paths",
        metavar="DIR",
    )
    address: str = option(
        "",
        "address of this machine for others, if a model is placed on several",
        default_text="that by which it reaches the server",
        metavar="HOST",
    )
    token_file: str | None = option(
        None,
        "file with the server's token",
        default_text="the variable MINDSPORE_SERVING_TOKEN",
    )
    insecure: bool = option(False, "join without TLS, if the server is on this machine")
    join_timeout: float = _TIMEOUT(
        60.0,
        "max time to reach the server at first",
        details="Once it has joined, it tries to join again until it is stopped",
    )
    shutdown_timeout: float = _TIMEOUT(25.0, "max time from SIGTERM to the end")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer(Access):
    """URL of a server to which a command sends an HTTP request."""

    url: str = url_argument(f"URL of the server, or HOST:PORT (default: {SERVER_URL})")
    http: str = option("", "older form of the argument URL", metavar="HOST:PORT")

    @property
    def server(self) -> str:
        """URL in either form.  Raises InvalidInputs if there are two."""
        if self.http and self.url != SERVER_URL:
            raise InvalidInputs(f"--http is the older form of URL, which is {self.url}: give one")
        return self.http or self.url


@dataclass(frozen=True, slots=True)
class StatusSettings(RunningServer):
    """Settings of `mindspore-serving status`."""

    json: bool = option(False, "print JSON, with more details")


@dataclass(frozen=True, slots=True)
class LoadSettings(RunningServer):
    """Settings of `mindspore-serving load`."""

    name: str = positional("name of the servable", metavar="NAME")
    reload: bool = option(False, "load the servable again even if it has not changed")
    traffic: str = option(
        "",
        "weights of versions until the next load, as 1=90,2=10",
        metavar="WEIGHTS",
        page="traffic.md",
    )
    shadow: str = option(
        "",
        "percent of requests that versions get copies of until the next load, as 2=5",
        metavar="PERCENTS",
        page="traffic.md#shadow",
    )
    timeout: float = _TIMEOUT(600.0, "max time until it is loaded")


@dataclass(frozen=True, slots=True)
class UnloadSettings(RunningServer):
    """Settings of `mindspore-serving unload`."""

    name: str = positional("name of the servable", metavar="NAME")
    timeout: float = _TIMEOUT(120.0, "max time until it is unloaded")


@dataclass(frozen=True, slots=True)
class LoadLoraSettings(RunningServer):
    """Settings of `mindspore-serving load-lora`."""

    name: str = positional("name of the adapter for clients", metavar="NAME")
    path: str = positional("directory of the adapter, on the server", metavar="DIRECTORY")
    model: str = option("", "name of the base model, if there are several", metavar="NAME")
    replace: bool = option(False, "replace an adapter of the same name")
    timeout: float = _TIMEOUT(120.0, "max time until it is loaded")


@dataclass(frozen=True, slots=True)
class UnloadLoraSettings(RunningServer):
    """Settings of `mindspore-serving unload-lora`."""

    name: str = positional("name of the adapter", metavar="NAME")
    timeout: float = _TIMEOUT(120.0, "max time until the answer")


@dataclass(frozen=True, slots=True)
class ModelsSettings(RunningServer):
    """Settings of `mindspore-serving models`."""

    json: bool = option(False, "print JSON")


@dataclass(frozen=True, slots=True)
class PredictSettings(Access):
    """Settings of `mindspore-serving predict`."""

    url: str = url_argument(
        "http://HOST:PORT for REST, grpc://HOST:PORT, HOST:PORT or unix:PATH for gRPC "
        f"(default: {SERVER_URL})"
    )
    servable: str = positional("name of the servable", metavar="SERVABLE")
    method: str = positional(
        'name of the method; "predict" for a model file alone', metavar="METHOD"
    )
    inputs: str = positional(
        'JSON object, or array of objects; "-" reads standard input', metavar="INPUTS"
    )
    servable_version: int = option(0, "version of the servable", default_text="0, the newest")
    sequence: str = option("", "sequence of the request, for a method with a state", metavar="ID")
    start: bool = option(False, "begin the sequence with this request")
    end: bool = option(False, "end the sequence with this request; INPUTS may be []")
    timeout: float = _TIMEOUT(60.0, "max time until the reply")
    tls: bool = option(False, "use TLS for gRPC")


@dataclass(frozen=True, slots=True)
class LogLevelSettings(RunningServer):
    """Settings of `mindspore-serving log-level`."""

    level: str = positional(
        "new log level: debug, info, warning or error; without it the current one is printed",
        metavar="LEVEL",
        nargs="?",
        default="",
    )
