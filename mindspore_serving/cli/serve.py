"""`mindspore-serving serve`: find servables, serve them, and show what can be called.

The ports are taken first: one in use is an error at once, and /health answers while models load.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindspore_serving import server
from mindspore_serving.cli import report
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.language_limits import LANGUAGE_LIMITS
from mindspore_serving.core.server_limits import LIMITS
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable import repository, version_policy
from mindspore_serving.servable.check import check_number
from mindspore_serving.servable.repository import is_language_model
from mindspore_serving.server import startup
from mindspore_serving.server.config import merge_config, to_deployment
from mindspore_serving.server.master import context

KEYS = "MINDSPORE_SERVING_API_KEYS"  # in the environment, with spaces between them
RELOAD_SECONDS = 0.5  # between two looks with --reload
_POLL_SECONDS = 0.1


def run(settings: ServeSettings) -> int:
    """Serve until a signal (returns 0), or until every worker has ended for good (returns 1).

    Raises ServingError if nothing can be served; then nothing is left running.
    """
    tls = _tls(settings)
    configs = to_configs(settings)
    _say(f"Loading {len(configs)} servable{'s' * (len(configs) > 1)}:")
    for config in configs:
        _say(f"  {config.servable_name}  from {config.servable_directory}")
    began = time.monotonic()
    try:
        _listen(settings, tls)
        with _Progress(began):
            startup.deploy(
                _to_deployments(configs),
                lambda: _to_deployments(to_configs(settings)),
                _poll_seconds(settings),
            )
    except BaseException:
        server.stop()
        raise
    _say(report.ready(settings, startup.describe(), time.monotonic() - began))
    _warn(settings)
    return _wait()


def _to_deployments(configs: Sequence[server.ServableStartConfig]) -> list[Deployment]:
    return [to_deployment(config) for config in merge_config(configs)]


def _poll_seconds(settings: ServeSettings) -> float:
    seconds = check_number("--poll", settings.poll)
    return seconds or (RELOAD_SECONDS if settings.reload else 0.0)


SUPERVISION = (
    "max_workers",
    "min_workers",
    "requests_per_worker",
    "scale_down_delay",
    "restart_policy",
    "max_requests",
    "heartbeat_timeout",
    "stage_timeout",
    "step_timeout",
)


def to_configs(settings: ServeSettings) -> list[server.ServableStartConfig]:
    """One for each servable found.  Raises ServingError: nothing there, or a wrong setting."""
    places = (place for path in settings.paths for place in repository.discover(path))
    found = list(dict.fromkeys(places))
    if settings.name and len(found) > 1:
        raise InvalidInputs(f"--name is for one servable, {len(found)} were found")
    options = llm_options(settings)
    workers = settings.num_parallel_workers
    return [
        server.ServableStartConfig(
            directory,
            name,
            settings.device_ids or (None if workers or settings.max_workers else 0),
            device_type=settings.device_type,
            num_parallel_workers=workers,
            max_batch_delay_ms=settings.max_batch_delay_ms,
            preferred_batch_size=settings.preferred_batch_size,
            version_number=version,
            **{name: getattr(settings, name) for name in SUPERVISION},
            node_labels=dict(settings.node_labels),
            alias=settings.name,
            llm_options=options if is_language_model(os.path.join(directory, name)) else None,
        )
        for directory, name in found
        for version in _versions(settings.versions, directory, name)
    ]


def _versions(policy: str, directory: str, name: str) -> list[int]:
    """The versions to serve; 0 of a servable without version directories."""
    found = repository.versions(directory, name)
    chosen = version_policy.choose(policy, found)
    if found and not chosen:
        raise InvalidInputs(
            f"--versions {policy} leaves none of servable {name}, which has "
            f"{', '.join(map(str, found))}"
        )
    return chosen or [0]


def llm_options(settings: ServeSettings) -> dict[str, Any]:
    """The options of language models.  Raises InvalidInputs for one without a value."""
    given = {name: getattr(settings, name) for name in ("runtime", "quantization", "max_model_len")}
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    return options | _values("--llm-option", settings.llm_option)


def api_keys(settings: ServeSettings) -> "tuple[str, ...] | Path":
    """The keys that clients must send, or the file that they are in.  Raises InvalidInputs."""
    if settings.api_key_file is not None:
        if settings.api_key:
            raise InvalidInputs("--api-key and --api-key-file exclude each other")
        return Path(settings.api_key_file)
    return tuple(settings.api_key) or tuple(os.environ.get(KEYS, "").split())


def limits(settings: ServeSettings) -> tuple[server.ServerLimits, server.LanguageLimits]:
    """The limits of both servers, and of requests to language models.  Raises InvalidInputs for
    one that does not exist."""
    given = _values("--limit", settings.limit)
    known = [*LIMITS, *LANGUAGE_LIMITS]
    for name in given.keys() - known:
        raise InvalidInputs(f"--limit {name} does not exist; there are {', '.join(known)}")
    content = {name: given.pop(name) for name in given.keys() & LANGUAGE_LIMITS.keys()}
    return server.ServerLimits(**given), server.LanguageLimits(**content)


def _values(option: str, texts: Sequence[str]) -> dict[str, Any]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidInputs(f"{option} is {text!r}, expected NAME=VALUE")
        found[name.replace("-", "_")] = _value(value)
    return found


def _value(text: str) -> Any:
    """A number, true, false or a JSON object where `text` is one; else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return int(value) if isinstance(value, float) and value.is_integer() else value


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


def _listen(settings: ServeSettings, tls: server.SSLConfig | None) -> None:
    _warn(settings)
    (most, content), keys = limits(settings), api_keys(settings)
    context.set_max_enqueued_requests(settings.max_enqueued_requests)
    context.set_shutdown_timeout(settings.shutdown_timeout)
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
    if not settings.no_http:
        server.start_restful_server(
            report.address(settings.host, settings.http_port),
            settings.max_msg_mb,
            tls,
            use_status_codes=settings.http_status_codes,
            api_keys=keys,
            llm_serving_form="bare" if settings.llm_serving_form == "bare" else "r21",
            allowed_hosts=settings.allowed_host,
            allow_origins=settings.allow_origin,
            max_n=settings.max_n,
            allow_priority=settings.allow_priority,
            allow_loading=settings.allow_loading,
            limits=most,
            language_limits=content,
        )
    if not settings.no_grpc:
        where = report.address(settings.host, settings.grpc_port)
        server.start_grpc_server(
            where,
            settings.max_msg_mb,
            tls,
            api_keys=keys,
            limits=most,
            allow_loading=settings.allow_loading,
        )


def _warn(settings: ServeSettings) -> None:
    text = report.warning(settings)
    if text:
        print(text, file=sys.stderr, flush=True)


def _wait() -> int:
    """SIGINT and SIGTERM are the server's: it drains, then raises one of these here."""
    try:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
    except (KeyboardInterrupt, SystemExit):
        _say("Stopped.")
        return 0
    print("mindspore-serving: every worker has ended, see serving_logs/", file=sys.stderr)
    return 1


class _Progress:
    """Shows which servable is loaded, while the main thread waits for all of them."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        seen: set[tuple[str, int]] = set()
        is_last = False
        while not is_last:
            is_last = self._done.wait(_POLL_SECONDS)  # one more look at the end
            for servable in startup.describe():
                name, version = servable["name"], servable["version"]
                if servable["num_workers"] and (name, version) not in seen:
                    seen.add((name, version))
                    seconds = time.monotonic() - self._began
                    _say(f"  {name}  version {version} loaded, {seconds:.1f} s")


def _say(text: str) -> None:
    print(text, flush=True)
