"""start_servables, start_grpc_server, start_restful_server, stop: where all is wired.

Plain functions over one `Serving` on a background event loop, in any order, again after `stop`.
"""

import atexit
import os
import threading
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
from mindspore_serving.errors import AlreadyRunning, InvalidInputs, StartError, shortened
from mindspore_serving.servable import check
from mindspore_serving.server.config import ServableStartConfig, to_deployments
from mindspore_serving.server.front_ends import ApiKeys, FrontEndOptions
from mindspore_serving.server.lifetime import Lifetime
from mindspore_serving.server.showing import Loading, say, say_ready
from mindspore_serving.server.ssl_config import SSLConfig

if TYPE_CHECKING:
    from mindspore_serving.server.serving import Serving

T = TypeVar("T")

_loop = BackgroundLoop()
_lock = threading.Lock()
_serving: "Serving | None" = None
_lifetime = Lifetime(lambda: _shut_down(_shutdown_timeout))
_capacity = Capacity()
_shutdown_timeout = 25.0  # seconds; Kubernetes kills after 30


@shortened
def start_servables(
    servable_configs: "ServableStartConfig | Sequence[ServableStartConfig]",
    enable_lite: bool = False,
) -> None:
    """Start the worker processes of one or several servables and wait until all can be called.

    Afterwards the process stays alive, also when the script has ended, until `stop` or a signal:
    SIGTERM and SIGINT let running requests finish first.

    Args:
        servable_configs: what to start; configs of the same servable and version are merged.
        enable_lite: run MindIR models with MindSpore Lite.

    Raises RuntimeError: an argument is wrong, servables run already, or a worker could not start;
    then nothing is left running, and the text says which worker and why.
    """
    configs = check.as_instances("servable_configs", servable_configs, ServableStartConfig)
    check.check_bool("enable_lite", enable_lite)

    wanted = partial(to_deployments, configs, enable_lite=enable_lite)
    deploy(wanted(), wanted)


def deploy(
    deployments: Sequence[Deployment], wanted: Callable[[], Sequence[Deployment]] | None = None
) -> None:
    """Start what is deployed, see `load` and `start_servables`, and say when it is ready."""
    seconds, _ = load(deployments, wanted)
    say_ready(describe(), seconds)


def load(
    deployments: Sequence[Deployment | RefusedServable],
    wanted: Callable[[], Sequence[Deployment | RefusedServable]] | None = None,
    poll_seconds: float = 0.0,
    *,
    is_strict: bool = True,
) -> tuple[float, list[tuple[str, StartError]]]:
    """Start what is deployed, showing what is loaded; the seconds that it took.

    `wanted` gives what is to be served when it is loaded anew; with `poll_seconds` it is asked so
    often.  Any thread may call it.  Unless `is_strict`, servables that cannot start are left out,
    as long as there are others, and returned with the reasons.
    """
    serving = _get()
    if serving.is_deployed:
        raise InvalidInputs("Serving Error: Master server is already running, call stop() first")
    _lifetime.begin()
    try:
        with Loading(lambda: _loop.run(serving.readiness())) as loading:
            wanted = wanted or (lambda: deployments)
            starting = serving.deploy(deployments, wanted, poll_seconds, is_strict=is_strict)
            failed = _loop.run(starting)
    except BaseException:
        stop()
        raise
    return loading.seconds, failed


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
    grpc_library: str = "grpcio",
) -> None:
    """Serve clients over gRPC: the classic protocol and Open Inference Protocol v2.  May be called
    before or after `start_servables`.

    Args:
        address: `ip:port` or `unix:path`.
        ssl_config: certificates for TLS; None for plain text.
        api_keys: if any, clients must send one, as metadata `authorization: Bearer KEY`; a
            pathlib.Path is a file with a key in each line, which is read anew when it changes.
        limits: of what clients send, and of time; see docs/limits.md.
        {}

    Raises:
        RuntimeError: an argument is wrong or the address cannot be bound, then everything is
            stopped; or a gRPC server runs already.
    """
    arguments = locals()
    with all_or_nothing():
        start_grpc(FrontEndOptions.from_arguments(**arguments))


def start_grpc(options: FrontEndOptions) -> None:
    """See `start_grpc_server`."""
    run_on_server(lambda serving: serving.start_grpc(options))
    say(f"Serving gRPC server start success, listening on {options.address}")


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
) -> None:
    """Serve clients over HTTP: the classic protocol and Open Inference Protocol v2, OpenAI's, TGI's
    and llm-serving's for language models, a page at `/`.  May be called before `start_servables`.

    Args:
        address: `ip:port`.
        ssl_config: certificates for HTTPS; None for plain text.
        api_keys: if any, clients must send one, as header `Authorization: Bearer KEY` (or password
            of basic authentication), on every route but those of health; or a file, a pathlib.Path.
        limits: of what clients send, and of time; see docs/limits.md.
        language_limits: of requests to language models; see docs/limits.md.
        {}

    Raises:
        RuntimeError: an argument is wrong or the address cannot be bound, then everything is
            stopped; or a RESTful server runs already.
    """
    arguments = locals()
    with all_or_nothing():
        start_http(FrontEndOptions.from_arguments(**arguments))


def start_http(options: FrontEndOptions) -> None:
    """See `start_restful_server`."""
    run_on_server(lambda serving: serving.start_http(options))
    say(f"Serving RESTful server start success, listening on {options.address}")


def stop() -> None:
    """Stop everything at once, pending requests with an error; all can be started again."""
    _shut_down(0.0)


def is_running() -> bool:
    """Whether this process has a server, with or without servables."""
    return _serving is not None


def has_servables() -> bool:
    """Whether servables were started, also if all have been unloaded since."""
    return _serving is not None and _serving.is_deployed


def describe() -> list[dict[str, Any]]:
    """Each servable version that can be called: name, version, methods, number of workers."""
    return [] if _serving is None else _loop.run(_serving.describe())


def open_server() -> None:
    """Have a server without servables or listeners, which may be added later."""
    _get()


def set_capacity(**changes: int) -> None:
    """Change fields of `Capacity`; see `server.context`."""
    global _capacity
    _capacity = replace(_capacity, **changes)
    if _serving is not None:
        _serving.set_capacity(_capacity)


def set_shutdown_timeout(seconds: float) -> None:
    """See `server.context`."""
    global _shutdown_timeout
    _shutdown_timeout = seconds


def run_on_server(work: "Callable[[Serving], Coroutine[Any, Any, T]]") -> T:
    """What `work` returns for the server, which is made if there is none."""
    return _loop.run(_get().run(work))


def _get() -> "Serving":
    global _serving
    # Else gRPC ends its threads around each start of a worker.  It reads this when imported.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it says on stderr is in our errors
    from mindspore_serving.server.serving import Serving

    with _lock:
        if _serving is None:
            _serving = _loop.run(Serving.create(_capacity, _lifetime.end))
            atexit.unregister(stop)  # which must be once there, and run before the loop is closed
            atexit.register(stop)
        return _serving


@contextmanager
def all_or_nothing() -> Iterator[None]:
    """Stop everything after an error, so that the process can end."""
    try:
        yield
    except AlreadyRunning as error:
        log.error("%s", error)
        raise
    except BaseException:
        stop()
        raise


def _shut_down(seconds: float) -> None:
    global _serving
    with _lock:
        serving, _serving = _serving, None
    try:
        if serving is not None:
            _loop.run(serving.stop(seconds))
    finally:
        _lifetime.over()
