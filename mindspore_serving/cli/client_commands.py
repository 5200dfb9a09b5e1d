"""Commands for a shell that call a server: curl, and this package's own clients.

Each can be pasted as it is: it has the address, the certificate, and the API key as a variable of
the environment, never the key itself.  It knows no servables.
"""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from mindspore_serving.cli.certificate_names import verified_host
from mindspore_serving.cli.endpoint import API_KEY
from mindspore_serving.cli.settings import ServeSettings

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}  # a host to connect to
_KEY_HEADER = f'-H "Authorization: Bearer ${API_KEY}"'
SET_KEY = f"export {API_KEY}=YOUR-KEY"


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Reach:
    """Access of clients on this machine to a server: URLs, certificate and key.

    `url` and `grpc` are "" for a port that is off. `certificate` is that of the server, "" without
    TLS; clients must send a certificate or a key if `needs_certificate` or `needs_key`. `connect`
    is how curl finds the host of the URL, if only the certificate has that name.
    """

    url: str
    grpc: str
    certificate: str = ""
    needs_certificate: bool = False
    needs_key: bool = False
    connect: str = ""

    @classmethod
    def of(cls, settings: ServeSettings, *, needs_key: bool = False) -> "Reach":
        """Return how the server of `settings` is reached."""
        local = host = _EVERYWHERE.get(settings.host, settings.host)
        scheme, certificate, port = "http", "", settings.http_port
        if settings.tls_cert:
            scheme, certificate = "https", os.path.abspath(settings.tls_cert)
            host = verified_host(certificate, settings.tls_key or "", local)
        target = f"{join_address(host, port)}:{join_address(local, port)}"
        return cls(
            "" if settings.no_http else f"{scheme}://{join_address(host, port)}",
            "" if settings.no_grpc else join_address(host, settings.grpc_port),
            certificate,
            bool(settings.tls_ca),
            needs_key,
            "" if host == local else target,
        )

    def curl(self, path: str, body: str, source: str = "", headers: Sequence[str] = ()) -> str:
        """Return a POST to `path`, which begins with "/"; the command `source` prints the body."""
        words = self._curl(path, headers)
        return _piped(source, [*words, shlex.join(["-d", "@-" if source else body])])

    def upload(self, path: str, **fields: str) -> str:
        """Return a POST of a form to `path`."""
        words = (shlex.join(["-F", f"{name}={value}"]) for name, value in fields.items())
        return " ".join([*self._curl(path), *words])

    def _curl(self, path: str, headers: Sequence[str] = ()) -> list[str]:
        words = [shlex.join(["curl", self.url + path])]
        if self.connect:
            words.append(shlex.join(["--connect-to", self.connect]))
        if self.needs_key:
            words.append(_KEY_HEADER)
        words += [shlex.join(["-H", header]) for header in headers]
        return [*words, *self._tls("--cacert", "--")]

    def predict(self, servable: str, method: str, body: str, source: str = "") -> str:
        """Return a call over gRPC; the client reads the key from the environment."""
        words = ["mindspore-serving", "predict", self.grpc, servable, method]
        return _piped(
            source,
            [shlex.join([*words, "-" if source else body]), *self._tls("--tls-ca", "--tls-")],
        )

    def client(self, command: str, *options: str) -> str:
        """Return a command of ours that takes the server's URL, such as `chat`."""
        words = [shlex.join(["mindspore-serving", command, self.url, *options])]
        return " ".join([*words, *self._tls("--tls-ca", "--tls-")])

    def _tls(self, authority: str, prefix: str) -> list[str]:
        words = []
        if self.certificate:
            words.append(shlex.join([authority, self.certificate]))
        if self.needs_certificate:
            words.append(f"{prefix}cert CLIENT.pem {prefix}key CLIENT-KEY.pem")
        return words


def _piped(source: str, words: list[str]) -> str:
    line = " ".join(words)
    return f"{source} | {line}" if source else line
