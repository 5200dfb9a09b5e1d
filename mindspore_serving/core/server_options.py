"""Options of servers: one table, each row a field of `ServerOptions`.

The arguments of the functions that start servers, the options of `serve`, and configuration files
with their schema are made from the rows.  Checks nothing.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from mindspore_serving.core.params import param, rows_of

_ports: Any = partial(param, group="ports")
_tenants: Any = partial(param, group="observing", page="tenants.md#logs")
_security: Any = partial(param, group="security")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of one HTTP or gRPC server."""

    max_msg_mb_size: int = param(
        100,
        "max size of a message, received or sent",
        at_least=1,
        at_most=512,
        unit="megabytes",
        group="limits",
        metavar="MB",
        is_common=True,
        serve="max_msg_mb",
    )
    front_ends: int = _ports(
        1,
        "number of processes that serve the ports, for machines with many cores",
        details="1 is the server's own process. The HTTP and gRPC servers have the same number",
        at_least=1,
        at_most=64,
        page="deploy.md",
    )
    use_status_codes: bool = _ports(
        False,
        "answer errors with status 4xx and 5xx, not with 200 as MindSpore Serving 2.0 did",
        serve=None,
    )
    llm_serving_form: Literal["r21", "bare"] = _ports(
        "r21",
        "form of streams in the protocol of llm-serving",
        details="r21: server-sent events; bare: plain lines",
        choices=("r21", "bare"),
        page="llm_serving.md",
    )
    allowed_hosts: tuple[str, ...] = _security(
        (),
        "host name by which clients may call the server",
        details="localhost, addresses and the host of the server's own address are always allowed. "
        "Names are checked if one is allowed here, or if the address is of this machine only",
        metavar="HOST",
        serve="allowed_host",
        page="restful.md#browsers",
    )
    allow_origins: tuple[str, ...] = _security(
        (),
        "site whose web pages may use the server, as https://example.org, or *",
        metavar="ORIGIN",
        serve="allow_origin",
        page="restful.md#browsers",
    )
    allow_loading: bool = _security(
        False,
        "let clients load and unload servables and change the log level",
        is_common=True,
        page="repository.md#by-clients",
    )
    lora_directories: tuple[str, ...] = _security(
        (),
        "let clients load and unload the LoRA adapters below this directory",
        metavar="DIRECTORY",
        serve="allow_lora_loading",
        page="adapters.md",
    )
    pull_prefixes: tuple[str, ...] = _security(
        (),
        "let clients download models whose names begin so, as ollama:// or hf://Qwen/",
        details="By Ollama's protocol they also create, copy and delete models then",
        metavar="PREFIX",
        serve="allow_pulling",
        page="ollama.md#models-of-clients",
    )
    client_shared_memory: bool = _security(
        False,
        "let clients of protocol v2 pass tensors in shared memory of this machine",
        page="v2.md#shared-memory",
    )
    allow_priority: bool = _security(
        False, "let clients choose the priority of requests to language models"
    )
    allow_chat_template: bool = _security(
        False, "let clients send a chat template of their own with a request"
    )
    mcp_config: str = _security(
        "",
        "file of MCP servers whose tools language models may call for clients",
        details="JSON with mcpServers, as other programs have it. Without it, no tool is called",
        metavar="FILE",
        is_path=True,
        page="mcp.md#tools-for-models",
    )
    max_n: int = param(
        16,
        "max completions of a language model per prompt",
        at_least=1,
        at_most=128,
        group="limits",
    )
    state_directory: str = param(
        "",
        "directory or postgresql:// URL of files, batches and responses that survive the server",
        details="A directory is created if it does not exist, and has one server at a time; a "
        "database has several. Without it, there are no files and batches, and responses are "
        "stored in memory",
        group="limits",
        metavar="DIRECTORY|URL",
        is_path=True,
        is_secret=True,
        serve="state",
        page="batches.md",
    )
    audit_log: str = _tenants(
        "",
        "file of JSON lines that tell who sent which request",
        details="It has nothing of bodies. At 64 MiB it becomes FILE.1; 3 of these stay",
        metavar="FILE",
        is_path=True,
    )
    usage_log: str = _tenants(
        "",
        "CSV file, .sqlite file or postgresql:// URL that gets the usage of keys each minute",
        metavar="FILE|URL",
        is_path=True,
        is_secret=True,
    )
    payload_log: str = _tenants(
        "",
        "file or http(s):// URL that gets requests and answers as CloudEvents",
        details="It has the content of requests: keep it as secret as they are",
        metavar="FILE|URL",
        is_path=True,
    )
    payload_rate: float = _tenants(
        1.0, "share of the requests that payload_log gets", at_least=0.0, at_most=1.0
    )
    payload_redact: tuple[str, ...] = _tenants(
        (), "name of a field whose values payload_log does not get", metavar="NAME"
    )
    limits_store: str = param(
        "",
        "URL of a Valkey or Redis server by which servers count the limits of keys together",
        details="As rediss://HOST:6379/0. Without it, `state_directory` keeps the counts of the "
        "day, if there is one",
        group="limits",
        metavar="URL",
        is_secret=True,
        page="tenants.md#several-servers",
    )
    vllm_metrics: bool = param(
        False,
        "add the metrics of language models under vLLM's names to /metrics",
        group="observing",
        page="metrics.md#under-other-names",
    )


SERVER = rows_of(ServerOptions)
