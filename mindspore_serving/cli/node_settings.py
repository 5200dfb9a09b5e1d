"""The settings of the subcommands for running servers and their machines."""

from collections.abc import Mapping
from dataclasses import dataclass

from mindspore_serving.cli.options import option, positional
from mindspore_serving.cli.settings import HTTP_PORT, Access, TlsFiles
from mindspore_serving.log.settings import NAMES


@dataclass(frozen=True, slots=True)
class WorkerSettings(TlsFiles):
    """`mindspore-serving worker`."""

    join: str = option("", "the master's --worker-address", metavar="HOST:PORT")
    name: str = option(
        "",
        "name of this machine, of which each must have its own (default: the host's name)",
        metavar="NAME",
    )
    slots: int = option(
        0, "most workers at once (default: one for each of --device-ids, else for each core)"
    )
    device_type: str | None = option(
        None, "Ascend, GPU or CPU: only workers for it (default: any)", metavar="TYPE"
    )
    device_ids: tuple[int, ...] = option(
        (), "devices of this machine, each for one worker, as 0,1", metavar="IDS"
    )
    labels: Mapping[str, str] = option(
        {},
        "what servables may ask for with --node-labels, as zone=a,disk=ssd",
        metavar="LABELS",
    )
    servables: str | None = option(
        None, "where servables are here (default: at the master's path)", metavar="DIR"
    )
    token_file: str | None = option(
        None, "the master's token (default: that in MINDSPORE_SERVING_TOKEN)"
    )
    insecure: bool = option(False, "no TLS, to a master on this machine")
    join_timeout: float = option(
        60.0, "seconds to try to reach the master at first", metavar="SECONDS"
    )
    shutdown_timeout: float = option(
        25.0, "seconds from SIGTERM until all has ended", metavar="SECONDS"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer(Access):
    """One that a command asks over HTTP."""

    http: str = option(
        f"127.0.0.1:{HTTP_PORT}", "the server, or a URL (https://...)", metavar="HOST:PORT"
    )


@dataclass(frozen=True, slots=True)
class StatusSettings(RunningServer):
    """`mindspore-serving status`."""

    json: bool = option(False, "as JSON, with all that is known")


@dataclass(frozen=True, slots=True)
class LoadSettings(RunningServer):
    """`mindspore-serving load`."""

    name: str = positional("the servable", metavar="NAME")
    reload: bool = option(False, "load it anew also if nothing has changed")
    timeout: float = option(600.0, "seconds to wait until it is loaded", metavar="SECONDS")


@dataclass(frozen=True, slots=True)
class UnloadSettings(RunningServer):
    """`mindspore-serving unload`."""

    name: str = positional("the servable", metavar="NAME")
    timeout: float = option(120.0, "seconds to wait until it has ended", metavar="SECONDS")


@dataclass(frozen=True, slots=True)
class LoadLoraSettings(RunningServer):
    """`mindspore-serving load-lora`."""

    name: str = positional("what clients are to call it", metavar="NAME")
    path: str = positional("its directory, on the server", metavar="DIRECTORY")
    model: str = option("", "the model that it is of, if there are several", metavar="NAME")
    replace: bool = option(False, "take the place of an adapter of that name")
    timeout: float = option(120.0, "seconds to wait until it is loaded", metavar="SECONDS")


@dataclass(frozen=True, slots=True)
class UnloadLoraSettings(RunningServer):
    """`mindspore-serving unload-lora`."""

    name: str = positional("the adapter", metavar="NAME")
    timeout: float = option(120.0, "seconds to wait for the answer", metavar="SECONDS")


@dataclass(frozen=True, slots=True)
class ModelsSettings(RunningServer):
    """`mindspore-serving models`."""

    json: bool = option(False, "as JSON")


@dataclass(frozen=True, slots=True)
class PredictSettings(Access):
    """`mindspore-serving predict`."""

    where: str = positional("IP:PORT, unix:PATH, http://IP:PORT", metavar="WHERE")
    servable: str = positional("the servable", metavar="SERVABLE")
    method: str = positional("the method; of a bare model: predict", metavar="METHOD")
    inputs: str = positional("a JSON object, an array of them, or -", metavar="INPUTS")
    servable_version: int = option(0, "version of the servable; 0 is the newest")
    timeout: float = option(60.0, "seconds to wait for the reply")
    tls: bool = option(False, "gRPC over TLS")


@dataclass(frozen=True, slots=True)
class LogLevelSettings(RunningServer):
    """`mindspore-serving log-level`."""

    level: str = positional(
        "the level from now on; without it the present one is printed",
        metavar="LEVEL",
        nargs="?",
        default="",
        choices=("", *NAMES),
    )


@dataclass(frozen=True, slots=True)
class ChatSettings(Access):
    """`mindspore-serving chat`."""

    url: str = positional("http://IP:PORT of the server", metavar="URL")
    prompt: str = option("", "answer this and end", metavar="TEXT")
    model: str = option("", "name of the model (default: the first)", metavar="NAME")
    system: str = option("", "system prompt", metavar="TEXT")
    load: str | None = option(None, "go on with a conversation that /save wrote")
    history: bool = option(
        True, "keep what is typed, in ~/.local/state/mindspore-serving/chat_history (default: yes)"
    )
    temperature: float | None = option(
        None, "0 for the likeliest words (default: the server's)", metavar="T"
    )
    top_p: float | None = option(
        None, "draw from the likeliest words that have this share", metavar="P"
    )
    max_tokens: int | None = option(None, "longest answer (default: the server's)", metavar="N")
    timeout: float = option(300.0, "seconds to wait for more of an answer")
