"""Sources of upstreams: a name of DNS, a service of Kubernetes, or a file.

A source is read again and again; what its last successful reading named counts until the next.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from mindspore_serving.aio import on_thread
from mindspore_serving.errors import StartError, UpstreamFailed, reason
from mindspore_serving.llm.upstream.connection import (
    MAX_BODY,
    MAX_HEAD,
    ReplyLimits,
    Server,
    UpstreamFailure,
)
from mindspore_serving.llm.upstream.targets import UpstreamTarget, read_target

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # of the pod
MAX_TARGETS = 1000  # of one source
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector={}"
_LABEL = "kubernetes.io%2Fservice-name%3D"


async def discover(source: UpstreamTarget, timeout: float) -> list[UpstreamTarget]:
    """Return the upstreams that `source` names now.

    Raises ServingError if it cannot be read within `timeout` seconds, or names more than
    MAX_TARGETS.
    """
    scheme = source.url.partition("://")[0].partition("+")[0]
    reading = asyncio.ensure_future(_READERS[scheme](source, timeout))
    try:
        await asyncio.wait([reading], timeout=timeout)
        if not reading.done():
            raise UpstreamFailed(f"{source.url} was not read within {timeout:g} s")
        targets = {target.origin: target for target in reading.result()}
    finally:
        reading.cancel()
    if len(targets) > MAX_TARGETS:
        text = f"{source.url} names {len(targets)} upstreams, expected at most {MAX_TARGETS}"
        raise UpstreamFailed(text)
    return list(targets.values())


async def _read_name(source: UpstreamTarget, timeout: float) -> list[UpstreamTarget]:
    """Resolve a name, as dns://NAME:PORT/PATH or dns+https://..., by the system's resolver."""
    parts = urlsplit(source.url)
    loop = asyncio.get_running_loop()
    try:
        rows = await loop.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the second for a name that no host can have
        raise UpstreamFailed(f"{source.url} is not resolved: {reason(error)}") from None
    return [_at(source, str(row[4][0])) for row in rows]


def _at(source: UpstreamTarget, address: str, host: str = "") -> UpstreamTarget:
    """Return the target of `source` at one address."""
    parts = urlsplit(source.url)
    scheme = "https" if parts.scheme.endswith("+https") else "http"
    netloc = f"{host or parts.hostname}:{parts.port}"
    return replace(source, url=f"{scheme}://{netloc}{parts.path}", address=address)


async def _read_file(source: UpstreamTarget, timeout: float) -> list[UpstreamTarget]:
    """Read a file of upstreams, file:///PATH: one a line; # begins a comment."""
    path = Path(urlsplit(source.url).path)
    try:
        text = await on_thread("discovery", _read_text, path)
    except (OSError, UnicodeDecodeError) as error:
        raise UpstreamFailed(f"{source.url} cannot be read: {reason(error)}") from None
    targets = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        try:
            target = read_target(words)
        except StartError as error:
            raise UpstreamFailed(f"{source.url}, line {number}: {error}") from None
        if target.is_source:
            raise UpstreamFailed(f"{source.url}, line {number}: expected http or https")
        targets.append(target)
    return targets


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MAX_BODY + 1)
    if len(data) > MAX_BODY:
        raise OSError(None, f"it has more than {MAX_BODY} bytes")
    return data.decode()


# --- Kubernetes -------------------------------------------------------------------------------


class _Conditions(msgspec.Struct):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Endpoint(msgspec.Struct):
    addresses: list[str]
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)


class _PortRow(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class _Slice(msgspec.Struct, rename="camel"):
    address_type: str
    endpoints: list[_Endpoint] | None = None
    ports: list[_PortRow] | None = None


class _SliceList(msgspec.Struct):
    """EndpointSliceList of the API, as far as it is used."""

    items: list[_Slice] | None = None


async def _read_service(source: UpstreamTarget, timeout: float) -> list[UpstreamTarget]:
    """List the endpoints of a service, kubernetes://NAME[.NAMESPACE]:PORT/PATH.

    PORT is the number of the port of the pods. An endpoint that is not ready is left out; one that
    terminates but still serves gets no new requests.
    """
    parts = urlsplit(source.url)
    name, _, namespace = (parts.hostname or "").partition(".")
    namespace, server = await on_thread("discovery", _open_api, namespace, timeout)
    path = _SLICES.format(namespace, _LABEL + name)
    limits = ReplyLimits(timeout, timeout, timeout, MAX_HEAD + 2 * MAX_BODY)
    try:
        async with server.send(path, None, {"Accept": "application/json"}, limits) as reply:
            body = await reply.read_body()
            if reply.status != 200:
                text = reply.masked(body[:500].decode(errors="replace"))
                raise UpstreamFailed(f"the API of Kubernetes replied {reply.status}: {text}")
        slices = msgspec.json.decode(body, type=_SliceList).items or []
    except UpstreamFailure as failure:
        raise UpstreamFailed(f"{source.url} is not listed: {failure.error}") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UpstreamFailed(f"the API of Kubernetes sent an invalid list: {error}") from None
    host = f"{name}.{namespace}.svc"
    return [target for each in slices for target in _targets_of(each, source, host)]


def _targets_of(rows: _Slice, source: UpstreamTarget, host: str) -> Iterator[UpstreamTarget]:
    port = urlsplit(source.url).port
    if rows.address_type not in ("IPv4", "IPv6"):
        return
    if not any(row.port == port for row in rows.ports or ()):
        return
    for endpoint in rows.endpoints or ():
        state = endpoint.conditions
        is_serving = bool(state.serving if state.serving is not None else state.ready)
        # `ready` is unknown for null, which the API's documentation wants to be read as true.
        if state.ready is False and not (state.terminating and is_serving):
            continue
        for address in endpoint.addresses[:1]:
            target = _at(source, address, host)
            yield replace(target, is_leaving=bool(state.terminating))


def _open_api(
    namespace: str, timeout: float, environment: Mapping[str, str] = os.environ
) -> tuple[str, Server]:
    """Return the namespace and the API of the cluster in which this process runs.

    The token is read anew because it is replaced while the pod runs. Raises UpstreamFailed.
    """
    if not environment.get(_HOST):
        raise UpstreamFailed(f"kubernetes:// works in a pod only: {_HOST} is not set")
    try:
        token = (ACCOUNT / "token").read_text().strip()
        namespace = namespace or (ACCOUNT / "namespace").read_text().strip()
        context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    except (OSError, ssl.SSLError, UnicodeDecodeError) as error:
        text = f"the pod's service account in {ACCOUNT} cannot be read: {reason(error)}"
        raise UpstreamFailed(text) from None
    host, port = environment[_HOST], environment.get(_PORT, "443")
    host = f"[{host}]" if ":" in host else host
    return namespace, Server(UpstreamTarget(f"https://{host}:{port}"), context, token, timeout)


_READERS: dict[str, Callable[[UpstreamTarget, float], Awaitable[Any]]] = {
    "dns": _read_name,
    "file": _read_file,
    "kubernetes": _read_service,
}
