"""Text that `serve` prints: where it listens, its methods, and how to call them.  No I/O."""

import shlex
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias
from urllib.parse import quote

from mindspore_serving.cli import example
from mindspore_serving.cli.settings import ServeSettings

Servable: TypeAlias = dict[str, Any]

_EVERYWHERE = ("0.0.0.0", "::", "[::]")
_LOOPBACK = ("localhost", "::1", "[::1]")


def address(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def warnings(settings: ServeSettings) -> Iterator[str]:
    """Iterate over warnings if the log, or other machines, can get the content of requests."""
    host = settings.host
    if settings.log_requests:
        yield (
            "WARNING: --log-requests writes the prompts and values of all clients to the log: "
            "everyone who can read the log can read them."
        )
    if settings.tls_cert or host in _LOOPBACK or host.startswith("127."):
        return
    yield (
        f"WARNING: listening on {host} without TLS: everyone who reaches this address can call "
        "every servable and read the traffic, API keys too.  Use --host 127.0.0.1, a firewall, or "
        "--tls-cert, --tls-key and --tls-ca."
    )


def ready(settings: ServeSettings, servables: Iterable[Servable], seconds: float) -> str:
    """Return the text that is printed when all models are loaded.

    `servables` are as `core.service.Control.describe` returns them.
    """
    ordered = sorted(servables, key=lambda servable: (servable["name"], servable["version"]))
    return "\n".join(_lines(settings, ordered, seconds))


def _lines(settings: ServeSettings, servables: list[Servable], seconds: float) -> Iterator[str]:
    yield f"Ready after {seconds:.1f} s."
    if not settings.no_http:
        yield f"  REST  {_url(settings)}  (GET /docs, /health, /metrics, /servables)"
    if not settings.no_grpc:
        yield f"  gRPC  {address(settings.host, settings.grpc_port)}"
    for servable in servables:
        yield ""
        name, workers = servable["name"], servable["num_workers"]
        yield f"{name}, version {servable['version']}, {workers} worker{'s' * (workers != 1)}"
        if "summary" in servable:
            yield from _language_lines(settings, servable)
        for method, names in servable["methods"].items():
            yield f"  {method}({', '.join(names['inputs'])}) -> {', '.join(names['outputs'])}"
            yield f"    {call_line(settings, name, method, names['input_specs'])}"
    yield ""
    yield "Replace the example values by your own.  Ctrl-C stops."


def _language_lines(settings: ServeSettings, servable: Servable) -> Iterator[str]:
    yield f"  {servable['summary']}"
    if servable.get("sampling"):
        yield f"  {servable['sampling']}"
    if settings.no_http:
        return
    url = _url(settings)
    yield f"  page     {url}/"
    yield f"  OpenAI   {url}/v1   Anthropic, Ollama, TGI  {url}"
    yield f"  chat     mindspore-serving chat {url}"


def call_line(
    settings: ServeSettings, servable: str, method: str, specs: Iterable[dict[str, Any]]
) -> str:
    """Return a shell command that calls `method`; `specs` describe its inputs."""
    if settings.no_http:
        source, body = example.body(specs, "{}")
        grpc_address = address(_reachable(settings.host), settings.grpc_port)
        words = ["mindspore-serving", "predict", grpc_address, servable, method]
        words += [body, *_tls_words(settings, "--tls-")]
    else:
        source, body = example.body(specs, '{"instances": [{}]}')
        words = ["curl", f"{_url(settings)}/model/{quote(servable)}:{quote(method)}"]
        words += ["-d", "@-" if source else body, *_tls_words(settings, "--")]
    return f"{source} | {shlex.join(words)}" if source else shlex.join(words)


def _tls_words(settings: ServeSettings, prefix: str) -> list[str]:
    """Return the TLS options of curl or `predict`, which differ in their prefix."""
    words = []
    if settings.tls_cert:
        words += ["--cacert" if prefix == "--" else "--tls-ca", settings.tls_cert]
    if settings.tls_ca:
        words += [f"{prefix}cert", "CLIENT.pem", f"{prefix}key", "CLIENT-KEY.pem"]
    return words


def _url(settings: ServeSettings) -> str:
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://{address(_reachable(settings.host), settings.http_port)}"


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in _EVERYWHERE else host
