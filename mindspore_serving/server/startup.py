"""The functions start_servables, start_grpc_server, start_restful_server and stop.

Plain functions over one `Serving` on a background event loop.  They may be called in any order, and
again after `stop`.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mindspore_serving import log
from mindspore_serving.aio import BackgroundLoop
from mindspore_serving.core.deployment import Capacity, Deployment, RefusedServable
from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.params import documented
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.server_options import SERVER
from mindspore_serving.core.service import ServableReadiness
from mindspore_serving.errors import AlreadyRunning, InvalidInputs, StartError, shortened
from mindspore_serving.process.entry import end_quickly
from mindspore_serving.servable import check
from mindspore_serving.servable.foreign import formats
from mindspore_serving.server.config import ServableStartConfig, to_deployments
from mindspore_serving.server.front_ends import ApiKeys, FrontEndOptions
from mindspore_serving.server.lifetime import Lifetime
from mindspore_serving.server.ssl_config import SSLConfig
from mindspore_serving.server.startup_report import LoadingReport, announce, announce_ready

if TYPE_CHECKING:
    from mindspore_serving.server.serving import Serving

T = TypeVar("T")

_loop = BackgroundLoop()
_lock = threading.Lock()
_serving: "Serving | None" = None
_lifetime = Lifetime(lambda: _end_slowly())
_capacity = Capacity()
_shutdown_timeout = 25.0  # seconds; Kubernetes kills after 30
_shutdown_delay = 0.0  # seconds of these


@shortened
def start_servables(
    servable_configs: "ServableStartConfig | Sequence[ServableStartConfig]",
    enable_lite: bool = False,
) -> None:
    """Start the worker processes of one or several servables and wait until all are ready.

    Afterwards the process stays alive, even when the script has ended, until `stop` or a signal:
    SIGTERM and SIGINT let running requests finish first.

    Args:
        servable_configs: the servables; configs of the same servable and version are merged.
        enable_lite: whether to run MindIR models with MindSpore Lite.

    Raises:
        RuntimeError: an argument is invalid, servables are running already, or a worker could not
            start; no process is left running then, and the text names the worker and the reason.
    """
    configs = check.as_instances("servable_configs", servable_configs, ServableStartConfig)
    check.check_bool("enable_lite", enable_lite)

    source = partial(to_deployments, configs, enable_lite=enable_lite)
    deploy(source(), source)


def deploy(
    deployments: Sequence[Deployment], source: Callable[[], Sequence[Deployment]] | None = None
) -> None:
    """Start deployments, see `load`, and print when they are ready."""
    seconds, _ = load(deployments, source)
    announce_ready(describe(), seconds)


def load(
    deployments: Sequence[Deployment | RefusedServable],
    source: Callable[[], Sequence[Deployment | RefusedServable]] | None = None,
    poll_seconds: float = 0.0,
    *,
    is_strict: bool = True,
) -> tuple[float, list[tuple[str, StartError]]]:
    """Start deployments, printing the progress; return the seconds taken, and the failures.

    `source` returns the current deployments for later loads; it may be called on any thread.  With
    `poll_seconds` it is polled at this interval (seconds).  Unless `is_strict`, servables that
    cannot start are skipped, as long as one starts, and returned with the reasons.
    """
    serving = _get()
    if serving.is_deployed:
        raise InvalidInputs("Serving Error: Master server is already running, call stop() first")
    for entry in deployments:
        if isinstance(entry, Deployment) and (line := formats.note(entry)):
            announce(line)
    _lifetime.begin()
    try:
        with LoadingReport(lambda: _loop.run(serving.readiness())) as report:
            source = source or (lambda: deployments)
            starting = serving.deploy(deployments, source, poll_seconds, is_strict=is_strict)
            failed = _loop.run(starting)
    except BaseException:
        stop()
        raise
    return report.seconds, failed


@shortened
@documented(SERVER)
def start_grpc_server(
    address: str,
    max_msg_mb_size: int = 100,
    ssl_config: SSLConfig | None = None,
    *,
    api_keys: ApiKeys = (),
    limits: ServerLimits | None = None,
    allow_loading: bool = False,
    client_shared_memory: bool = False,
    front_ends: int = 1,
) -> None:
    """Start the gRPC server: the classic protocol and Open Inference Protocol v2.

    It may be called before or after `start_servables`.

    Args:
        address: `ip:port` or `unix:path`.
        ssl_config: certificates for TLS; None for plain text.
        api_keys: if any, clients must send one, as metadata `authorization: Bearer KEY`; a
            pathlib.Path is a file with one key per line, which is reloaded when it changes.
        limits: limits of requests, connections and time; see `mindspore-serving docs limits`.
        {}

    Raises:
        RuntimeError: an argument is invalid or the address cannot be bound (everything is stopped
            then), or a gRPC server is running already.
    """
    arguments = locals()
    with all_or_nothing():
        options = FrontEndOptions.from_arguments(**arguments)
        start_grpc(options)
        announce(f"Serving gRPC server start success, listening on {options.address}")


def start_grpc(options: FrontEndOptions) -> None:
    """Start the gRPC server with checked options, see `start_grpc_server`."""
    run_on_server(lambda serving: serving.start_grpc(options))


@shortened
@documented(SERVER)
def start_restful_server(
    address: str,
    max_msg_mb_size: int = 100,
    ssl_config: SSLConfig | None = None,
    *,
    use_status_codes: bool = False,
    api_keys: ApiKeys = (),
    llm_serving_form: Literal["r21", "bare"] = "r21",
    limits: ServerLimits | None = None,
    allowed_hosts: Sequence[str] = (),
    allow_origins: Sequence[str] = (),
    language_limits: LanguageLimits | None = None,
    max_n: int = 16,
    allow_priority: bool = False,
    allow_chat_template: bool = False,
    allow_loading: bool = False,
    client_shared_memory: bool = False,
    front_ends: int = 1,
    vllm_metrics: bool = False,
    lora_directories: Sequence[str] = (),
    pull_prefixes: Sequence[str] = (),
    state_directory: str = "",
    mcp_config: str = "",
    audit_log: str = "",
    usage_log: str = "",
    payload_log: str = "",
    payload_rate: float = 1.0,
    payload_redact: Sequence[str] = (),
    limits_store: str = "",
) -> None:
    """Start the HTTP server: all REST protocols, those of language models, and a page at `/`.

    The protocols are the classic one, Open Inference Protocol v2, and for language models OpenAI's,
    Anthropic's, Gemini's, Ollama's, TGI's and llm-serving's.  It may be called before
    `start_servables`.

    Args:
        address: `ip:port`.
        ssl_config: certificates for HTTPS; None for plain text.
        api_keys: if any, clients must send one, as header `Authorization: Bearer KEY` (or password
            of basic authentication), on every route except health checks; a pathlib.Path is a file
            with one key per line, which is reloaded when it changes.
        limits: limits of requests, connections and time; see `mindspore-serving docs limits`.
        language_limits: limits of requests to language models; see `mindspore-serving docs limits`.
        {}

    Raises:
        RuntimeError: an argument is invalid or the address cannot be bound (everything is stopped
            then), or a RESTful server is running already.
    """
    arguments = locals()
    with all_or_nothing():
        options = FrontEndOptions.from_arguments(**arguments)
        start_http(options)
        announce(f"Serving RESTful server start success, listening on {options.address}")


def start_http(options: FrontEndOptions) -> None:
    """Start the HTTP server with checked options, see `start_restful_server`."""
    run_on_server(lambda serving: serving.start_http(options))


def stop() -> None:
    """Stop servers and servables at once; pending requests fail.  All can be started again."""
    _shut_down(0.0)


def is_running() -> bool:
    """Return whether this process has a server, with or without servables."""
    return _serving is not None


def has_servables() -> bool:
    """Return whether servables were started, even if all have been unloaded since."""
    return _serving is not None and _serving.is_deployed


def describe() -> list[dict[str, Any]]:
    """Return name, version, methods and number of workers of each servable version."""
    return [] if _serving is None else _loop.run(_serving.describe())


def find_unready() -> list[ServableReadiness]:
    """Return the servable versions that cannot take requests now, with the reasons."""
    rows = () if _serving is None else _loop.run(_serving.readiness())
    return [row for row in rows if not row.is_ready]


def open_server() -> None:
    """Create the server without servables or listeners, which may be added later."""
    _get()


def set_capacity(**changes: int) -> None:
    """Change fields of `Capacity`, see `server.context`."""
    global _capacity
    _capacity = replace(_capacity, **changes)
    if _serving is not None:
        _serving.set_capacity(_capacity)


def set_shutdown_timeout(seconds: float) -> None:
    """Set the timeout of the shutdown, see `server.context`."""
    global _shutdown_timeout
    _shutdown_timeout = seconds


def set_shutdown_delay(seconds: float) -> None:
    """Set the delay of the shutdown, see `server.context`."""
    global _shutdown_delay
    _shutdown_delay = seconds


def run_on_server(work: "Callable[[Serving], Coroutine[Any, Any, T]]") -> T:
    """Run `work` with the server, which is created if necessary, and return its result."""
    return _loop.run(_get().run(work))


def _get() -> "Serving":
    global _serving
    # Otherwise gRPC stops its threads at each start of a worker.  It reads this when imported.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors have the same texts
    from mindspore_serving.server.serving import Serving

    with _lock:
        if _serving is None:
            _serving = _loop.run(Serving.create(_capacity, _lifetime.end))
            end_quickly()
            atexit.unregister(stop)  # to be registered once, after the loop: so it runs before
            atexit.register(stop)  # the loop is closed
        return _serving


@contextmanager
def all_or_nothing() -> Iterator[None]:
    """Stop everything if the block raises, so that the process can exit."""
    try:
        yield
    except AlreadyRunning as error:
        log.error("%s", error)
        raise
    except BaseException:
        stop()
        raise


def _end_slowly() -> None:
    """Report not ready, wait for the delay of the shutdown, then shut down."""
    serving, delay = _serving, _shutdown_delay
    if serving is not None and delay:
        _loop.run(serving.announce_end())
        time.sleep(delay)
    _shut_down(max(1.0, _shutdown_timeout - delay))


def _shut_down(seconds: float) -> None:
    global _serving
    with _lock:
        serving, _serving = _serving, None
    try:
        if serving is not None:
            _loop.run(serving.stop(seconds))
    finally:
        _lifetime.over()
