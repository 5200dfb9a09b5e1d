"""`mindspore-serving serve`: find servables, serve them, and show what can be called.

The ports are taken first: one in use is an error at once, and /health answers while models load.
With --wait they are only tried then, and taken when everything is loaded.
"""

import os
import threading
from dataclasses import replace
from pathlib import Path

from mindspore_serving import log, server
from mindspore_serving.cli import report, servables
from mindspore_serving.cli.options import to_values
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.core.language_limits import LANGUAGE_LIMITS
from mindspore_serving.core.server_limits import LIMITS
from mindspore_serving.core.server_options import SERVER
from mindspore_serving.errors import InvalidInputs, did_you_mean
from mindspore_serving.frontends import address as addresses
from mindspore_serving.log.settings import ACCESS, FORMAT, LEVEL, REQUESTS
from mindspore_serving.server import context, startup
from mindspore_serving.server.config import to_deployments
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.tracing.options import is_wanted

KEYS = "MINDSPORE_SERVING_API_KEYS"  # in the environment, with spaces between them
RELOAD_SECONDS = 0.5  # between two looks with --reload


def run(settings: ServeSettings) -> int:
    """Serve until a signal (returns 0), or until every worker has ended for good (returns 1).

    Raises ServingError if nothing can be served; then nothing is left running.
    """
    tls = _tls(settings)
    _set_log(settings)
    configs, refused = servables.find(settings)
    for one in refused:
        log.tell(f"Not served: {one}")
    _say(f"Loading {len(configs)} servable{'s' * (len(configs) > 1)}:")
    for config in configs:
        source = servables.url_of(config.llm_options or {}) or config.servable_directory
        _say(f"  {config.servable_name}  from {source}")
    try:
        options = _prepare(settings, tls)
        if not settings.wait:
            _listen(settings, options)
        seconds, failed = startup.load(
            [*to_deployments(configs), *refused],
            lambda: servables.look_again(settings),
            settings.poll or (RELOAD_SECONDS if settings.reload else 0.0),
            is_strict=settings.strict,
        )
        if settings.wait:
            _listen(settings, options)
    except BaseException:
        server.stop()
        raise
    for name, error in failed:
        log.tell(f"Not served: {name}: {error}")
    _say(report.ready(settings, startup.describe(), seconds))
    _warn(settings)
    return _wait()


def _set_log(settings: ServeSettings) -> None:
    """Of this process and of its workers."""
    given = {
        LEVEL: settings.log_level,
        FORMAT: settings.log_format,
        ACCESS: "1" if settings.access_log else None,
        REQUESTS: "1" if settings.log_requests else None,
    }
    try:
        log.configure({name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        raise InvalidInputs(str(error)) from None


def api_keys(settings: ServeSettings) -> "tuple[str, ...] | Path":
    """The keys that clients must send, or the file that they are in.  Raises InvalidInputs."""
    if settings.api_key_file is not None:
        if settings.api_key:
            raise InvalidInputs("--api-key and --api-key-file exclude each other")
        return Path(settings.api_key_file)
    return tuple(settings.api_key) or tuple(os.environ.get(KEYS, "").split())


def limits(settings: ServeSettings) -> tuple[server.ServerLimits, server.LanguageLimits]:
    """The limits of both servers, and of requests to language models.  Raises InvalidInputs for
    one that does not exist.
    """
    given = to_values("--limit", settings.limit)
    known = [*LIMITS, *LANGUAGE_LIMITS]
    for name in given.keys() - known:
        near = did_you_mean(name, known)
        raise InvalidInputs(f"--limit {name} does not exist{near}; there are {', '.join(known)}")
    content = {name: given.pop(name) for name in given.keys() & LANGUAGE_LIMITS.keys()}
    return server.ServerLimits(**given), server.LanguageLimits(**content)


def _tls(settings: ServeSettings) -> server.SSLConfig | None:
    if settings.no_http and settings.no_grpc:
        raise InvalidInputs("--no-http and --no-grpc together leave nothing to listen on")
    if settings.tls_cert is None or settings.tls_key is None:
        if settings.tls_cert or settings.tls_key or settings.tls_ca:
            raise InvalidInputs("--tls-cert and --tls-key go together, and --tls-ca needs both")
        return None
    return server.SSLConfig(
        settings.tls_cert, settings.tls_key, settings.tls_ca, settings.tls_ca is not None
    )


def _prepare(settings: ServeSettings, tls: server.SSLConfig | None) -> FrontEndOptions:
    """Do what comes before any model is loaded; the options of the RESTful server.  Raises
    ServingError if one is wrong or a port is in use.
    """
    _warn(settings)
    most, content = limits(settings)
    options = FrontEndOptions.from_arguments(
        address=report.address(settings.host, settings.http_port),
        ssl_config=tls,
        api_keys=api_keys(settings),
        limits=most,
        language_limits=content,
        **{name: getattr(settings, name) for name in SERVER}
        | {"use_status_codes": settings.http_status_codes},
    )
    if settings.wait:
        check_ports(settings)
    context.set_max_enqueued_requests(settings.max_enqueued_requests)
    context.set_shutdown_timeout(settings.shutdown_timeout)
    context.set_max_loaded(settings.max_loaded)
    if is_wanted(settings.trace_endpoint):
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
    """Raises StartError if a port that will be listened on is in use."""
    for port, is_off, tag in (
        (settings.http_port, settings.no_http, "RESTful server"),
        (settings.grpc_port, settings.no_grpc, "Serving gRPC"),
    ):
        where = addresses.parse(report.address(settings.host, port), tag, allow_unix=False)
        if not is_off:
            addresses.listen(where, tag).close()


def _listen(settings: ServeSettings, options: FrontEndOptions) -> None:
    if not settings.no_http:
        startup.start_http(options)
    if not settings.no_grpc:
        address = report.address(settings.host, settings.grpc_port)
        startup.start_grpc(replace(options, address=address))


def _warn(settings: ServeSettings) -> None:
    for text in report.warnings(settings):
        log.tell(text, is_warning=True)


def _wait() -> int:
    """SIGINT and SIGTERM are the server's: it drains, then raises one of these here."""
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
