"""Certificate files to an ssl context (HTTP) or gRPC credentials.  TLS 1.2 and newer only."""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mindspore_serving.errors import StartError

if TYPE_CHECKING:
    import grpc


class Tls(Protocol):
    """Paths of PEM files; with `verify_client` clients need a certificate signed by `custom_ca`."""

    @property
    def certificate(self) -> str: ...

    @property
    def private_key(self) -> str: ...

    @property
    def custom_ca(self) -> str | None: ...

    @property
    def verify_client(self) -> bool: ...


def to_context(tls: Tls) -> ssl.SSLContext:
    """For HTTP.  Raises StartError naming the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    try:
        # a server cannot be asked for the password of a key: an empty one is an error, no prompt
        context.load_cert_chain(tls.certificate, tls.private_key, password="")
    except (OSError, ssl.SSLError) as error:
        which, path = "private_key", tls.private_key
        if not _is_certificate(tls.certificate):
            which, path = "certificate_chain", tls.certificate
        raise StartError(f"Serving Error: load {which} from {path} failed: {error}") from error
    if tls.verify_client:
        assert tls.custom_ca is not None
        try:
            context.load_verify_locations(tls.custom_ca)
        except (OSError, ssl.SSLError) as error:
            raise StartError(
                f"Serving Error: load root certificate from {tls.custom_ca} failed: {error}"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def to_credentials(tls: Tls) -> "grpc.ServerCredentials":
    """For gRPC.  Raises FileNotFoundError for a missing file, as the original did, else StartError
    naming the file that cannot be used."""
    import grpc

    pair = (Path(tls.private_key).read_bytes(), Path(tls.certificate).read_bytes())
    roots = None
    if tls.verify_client:
        assert tls.custom_ca is not None
        roots = Path(tls.custom_ca).read_bytes()
    to_context(tls)  # gRPC itself would only log what is wrong with them
    return grpc.ssl_server_credentials([pair], roots, tls.verify_client)


def _is_certificate(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ssl.SSLError):
        return False
    return True
