"""`mindspore-serving serve`: find servables, serve them, and print how to call them.

The ports are opened first: one in use is an error at once, and /health answers while models load.
With --wait they are only checked then, and opened when all models can be used.
"""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindspore_serving import log, server
from mindspore_serving.cli import report, servables
from mindspore_serving.cli.client_commands import Reach, join_address
from mindspore_serving.cli.early_worker import set_log
from mindspore_serving.cli.options import to_values
from mindspore_serving.cli.settings import GRPC_PORT, HTTP_PORT, ServeSettings
from mindspore_serving.cluster.worker_process import early
from mindspore_serving.core.language_limits import LANGUAGE_LIMITS
from mindspore_serving.core.server_limits import LIMITS
from mindspore_serving.core.server_options import SERVER
from mindspore_serving.errors import InvalidInputs, did_you_mean
from mindspore_serving.frontends import address as addresses
from mindspore_serving.frontends.key_file import EXPECTED, is_key
from mindspore_serving.llm.parallel import msrun
from mindspore_serving.server import context, startup
from mindspore_serving.server.config import to_deployments
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.server.startup_report import announce
from mindspore_serving.tracing.options import is_requested

KEYS = "MINDSPORE_SERVING_API_KEYS"  # in the environment, with spaces between them
RELOAD_SECONDS = 0.5  # interval of --reload
READY_SECONDS = 0.2  # interval of looks at servables that are not ready


def run(settings: ServeSettings) -> int:
    """Serve until a signal (returns 0), or until every worker has ended for good (returns 1).

    Of the processes that msrun starts, rank 0 serves, and the others end with it.  Raises
    ServingError if nothing can be served; then nothing is left running.
    """
    role = msrun.read_role()
    if role is None:
        return _serve(settings)
    if role.rank != 0:
        from mindspore_serving.llm.runtimes import joined_rank

        return joined_rank.run(role)
    never: dict[str, Any] = {"restart_policy": "never"}  # msrun starts no rank again
    servables = tuple({**servable, **never} for servable in settings.servables)
    with msrun.attached(role):
        return _serve(replace(settings, servables=servables, **never))


def _serve(settings: ServeSettings) -> int:
    if settings.port:
        settings = _with_shared_port(settings)
    tls = _tls(settings)
    set_log(settings)
    configs, refused = servables.find(settings)
    for servable in refused:
        log.tell(f"Not served: {servable}")
    plural = "s" * (len(configs) != 1)
    _say(f"Loading {len(configs)} servable{plural}{':' if configs else ': clients pull models'}")
    for config in configs:
        source = servables.url_of(config.llm_options or {}) or config.servable_directory
        _say(f"  {config.alias or config.servable_name}  from {source}")
    try:
        options = _prepare(settings, tls)
        if not settings.wait:
            _listen(settings, options)
        seconds, failed = startup.load(
            [*to_deployments(configs), *refused],
            lambda: servables.rediscover(settings),
            settings.poll or (RELOAD_SECONDS if settings.reload else 0.0),
            is_strict=settings.strict,
        )
        early.end()
        if settings.wait:
            _wait_until_ready()
            _listen(settings, options)
    except BaseException:
        server.stop()
        raise
    for name, error in failed:
        log.tell(f"Not served: {name}: {error}")
    described = startup.describe()
    reach = Reach.of(settings, needs_key=bool(api_keys(settings)))
    _say(report.ready(settings, reach, described, seconds, startup.find_unready()))
    _warn(settings, described)
    return _wait()


def _with_shared_port(settings: ServeSettings) -> ServeSettings:
    """Return the settings with both ports set to `port`.  Raises InvalidInputs for another one."""
    port = settings.port
    for name, number, default in (
        ("--http-port", settings.http_port, HTTP_PORT),
        ("--grpc-port", settings.grpc_port, GRPC_PORT),
    ):
        if number not in (port, default):
            raise InvalidInputs(
                f"--port {port} is for REST and gRPC, but {name} is {number}: give --port, or one "
                "port for each"
            )
    return replace(settings, http_port=port, grpc_port=port)


def api_keys(settings: ServeSettings) -> "tuple[str, ...] | Path":
    """Return the keys that clients must send, or their file.  Raises InvalidInputs."""
    if settings.api_key_file is not None:
        if settings.api_key:
            raise InvalidInputs("--api-key and --api-key-file exclude each other")
        return Path(settings.api_key_file)
    if settings.api_key:
        return tuple(_checked_key(key, "--api-key") for key in settings.api_key)
    return tuple(_checked_key(key, KEYS) for key in os.environ.get(KEYS, "").split())


def _checked_key(key: str, source: str) -> str:
    """Return `key`.  Raises InvalidInputs if it is none, without showing it."""
    if is_key(key):
        return key
    problem = f"{source} is a text of {len(key)} characters, expected {EXPECTED}"
    hint = "a file of keys is given by --api-key-file"
    if not os.path.isfile(key):
        hint = f"`openssl rand -hex 16` makes one; {hint}"
    raise InvalidInputs(f"{problem}: {hint}")


def limits(settings: ServeSettings) -> tuple[server.ServerLimits, server.LanguageLimits]:
    """Return the limits of both servers, and of requests to language models.

    Raises InvalidInputs for a limit that does not exist.
    """
    values = to_values("--limit", settings.limit)
    known = [*LIMITS, *LANGUAGE_LIMITS]
    for name in values.keys() - known:
        expected = did_you_mean(name, known) or f"; limits are {', '.join(known)}"
        raise InvalidInputs(f"--limit {name} does not exist{expected}")
    content = {name: values.pop(name) for name in values.keys() & LANGUAGE_LIMITS.keys()}
    return server.ServerLimits(**values), server.LanguageLimits(**content)


def _tls(settings: ServeSettings) -> server.SSLConfig | None:
    if settings.no_http and settings.no_grpc:
        raise InvalidInputs("--no-http and --no-grpc exclude each other: no port would be open")
    if settings.shutdown_delay > settings.shutdown_timeout - 1:
        raise InvalidInputs(
            f"--shutdown-delay is {settings.shutdown_delay:g}, expected at least 1 s less than "
            f"--shutdown-timeout, {settings.shutdown_timeout:g}"
        )
    if settings.token_file is not None and settings.worker_address is None:
        raise InvalidInputs("--token-file is for --worker-address, which is not given")
    if settings.tls_cert is None or settings.tls_key is None:
        if settings.tls_cert or settings.tls_key or settings.tls_ca:
            raise InvalidInputs("--tls-cert and --tls-key need each other, and --tls-ca needs both")
        return None
    return server.SSLConfig(
        settings.tls_cert, settings.tls_key, settings.tls_ca, settings.tls_ca is not None
    )


def _prepare(settings: ServeSettings, tls: server.SSLConfig | None) -> FrontEndOptions:
    """Prepare the server before models are loaded; return the options of the REST server.

    Raises ServingError if an option is wrong or a port is in use.
    """
    _warn(settings)
    server_limits, language_limits = limits(settings)
    options = FrontEndOptions.from_arguments(
        address=join_address(settings.host, settings.http_port),
        ssl_config=tls,
        api_keys=api_keys(settings),
        limits=server_limits,
        language_limits=language_limits,
        **{name: getattr(settings, name) for name in SERVER}
        | {"use_status_codes": settings.http_status_codes},
    )
    if settings.wait:
        check_ports(settings)
    context.set_max_enqueued_requests(settings.max_enqueued_requests)
    context.set_shutdown_timeout(settings.shutdown_timeout)
    context.set_shutdown_delay(settings.shutdown_delay)
    context.set_max_loaded(settings.max_loaded)
    if is_requested(settings.trace_endpoint):
        server.start_tracing(settings.trace_endpoint, settings.trace_ratio)
    if settings.worker_address is not None:
        server.start_node_server(
            settings.worker_address,
            tls,
            token_file=settings.token_file,
            insecure=settings.insecure,
            local_slots=settings.local_slots,
        )
    if settings.launcher == "ray":
        server.start_ray_machines(
            settings.ray_slots,
            settings.ray_machines,
            address=settings.ray_address,
            device_type="GPU" if (settings.device_type or "").lower() == "gpu" else "CPU",
        )
    return options


def check_ports(settings: ServeSettings) -> None:
    """Raise StartError if a port to be opened is in use."""
    for port, is_off, tag in (
        (settings.http_port, settings.no_http, "RESTful server"),
        (settings.grpc_port, settings.no_grpc, "Serving gRPC"),
    ):
        address = addresses.parse(join_address(settings.host, port), tag, allow_unix=False)
        if not is_off:
            addresses.listen(address, tag).close()


def _listen(settings: ServeSettings, options: FrontEndOptions) -> None:
    opened = []
    if not settings.no_http:
        startup.start_http(options)
        opened.append(options.address)
    is_served = bool(opened) and settings.grpc_port == settings.http_port  # HTTP's port has gRPC
    if not settings.no_grpc and not is_served:
        address = join_address(settings.host, settings.grpc_port)
        startup.start_grpc(replace(options, address=address))
        opened.append(address)
    announce(f"listening on {' and '.join(opened)}")


def _wait_until_ready() -> None:
    """Wait until every servable can take requests: an upstream may be away."""
    shown = ""
    while startup.is_running() and (unready := startup.find_unready()):
        text = "; ".join(f"{row.name}: {row.reason}" for row in unready)
        if text != shown:
            log.tell(f"Waiting (--wait) for {text}")
            shown = text
        time.sleep(READY_SECONDS)


def _warn(settings: ServeSettings, servables: Sequence[report.Servable] = ()) -> None:
    for text in (*report.warnings(settings), *report.model_warnings(servables)):
        log.tell(text, is_warning=True)


def _wait() -> int:
    """Wait for all threads.

    SIGINT and SIGTERM are handled by the server, which drains and then raises one of these here.
    """
    try:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
    except (KeyboardInterrupt, SystemExit):
        _say("Stopped.")
        return 0
    log.tell("mindspore-serving: every worker has ended, see serving_logs/")
    return 1


def _say(text: str) -> None:
    print(text, flush=True)
