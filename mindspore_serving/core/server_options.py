"""What can be asked of a server: one table, each row a field of `ServerOptions`.

The options of the functions that start servers, of `serve`, and of configuration files with their
schema are made from the rows.  Checks nothing.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from mindspore_serving.core.params import param, rows_of

_ports: Any = partial(param, group="ports")
_security: Any = partial(param, group="security")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Of one HTTP or gRPC server."""

    max_msg_mb_size: int = _ports(
        100,
        "the largest message, sent or received",
        at_least=1,
        at_most=512,
        unit="megabytes",
        metavar="MB",
        serve="max_msg_mb",
    )
    front_ends: int = _ports(
        1,
        "processes that serve the ports, for machines with many cores; 1 is the server's own.  The "
        "same for both servers; see docs/deploy.md",
        at_least=1,
        at_most=64,
    )
    grpc_library: str = _ports(
        "grpcio",
        "pygrpc-native is several times as fast, and has no TLS and few limits; see docs/deploy.md",
        choices=("grpcio", "pygrpc-native"),
    )
    use_status_codes: bool = _ports(
        False, "answer errors with 4xx and 5xx, not with 200 as the original did", serve=None
    )
    llm_serving_form: Literal["r21", "bare"] = _ports(
        "r21",
        "streams of llm-serving: r21, server-sent events, or bare, lines alone",
        choices=("r21", "bare"),
    )
    allowed_hosts: tuple[str, ...] = _security(
        (),
        "a name that clients may call the server by, besides localhost, addresses and that of its "
        "own address.  Checked if some are given, or the address is of this machine; repeatable",
        metavar="HOST",
        serve="allowed_host",
    )
    allow_origins: tuple[str, ...] = _security(
        (),
        "another site whose web pages may use the server, as https://example.org, or *; repeatable",
        metavar="ORIGIN",
        serve="allow_origin",
    )
    allow_loading: bool = _security(
        False, "clients may load and unload servables, and change the log level"
    )
    lora_directories: tuple[str, ...] = _security(
        (),
        "clients may load and unload LoRA adapters that are below this directory; repeatable",
        metavar="DIRECTORY",
        serve="allow_lora_loading",
    )
    client_shared_memory: bool = _security(
        False,
        "clients of protocol v2 may name shared memory of this machine, from which tensors are "
        "read and to which they are written",
    )
    allow_priority: bool = _security(
        False, "clients may choose the priority of requests to language models"
    )
    allow_chat_template: bool = _security(
        False, "clients may give the chat template of a request to a language model"
    )
    max_n: int = param(
        16,
        "the most answers of a language model to one prompt",
        at_least=1,
        at_most=128,
        group="limits",
    )
    vllm_metrics: bool = param(
        False,
        "/metrics has the numbers of language models under vLLM's names, too",
        group="observing",
    )


SERVER = rows_of(ServerOptions)
