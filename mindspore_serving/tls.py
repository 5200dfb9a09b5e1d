"""Certificate files to an ssl context or gRPC credentials.  TLS 1.2 and newer only."""

import re
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mindspore_serving import log
from mindspore_serving.errors import StartError

if TYPE_CHECKING:
    import grpc


SOON = timedelta(days=14)
_PEM = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.S)
# The validity of a certificate in DER: a sequence of two times, their years in two or four digits.
_VALIDITY = re.compile(
    rb"\x30.(?:\x17\x0d\d{12}|\x18\x0f\d{14})Z(?:\x17\x0d|\x18\x0f)(\d{12,14})Z", re.S
)


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
    """Of a server; a warning is logged if the certificate expires within SOON.

    Raises StartError naming the file that cannot be used.
    """
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
    _warn_of_end(tls.certificate)
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


def to_client_context(ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    """Of a client, which trusts `ca`, or the system's authorities.  Raises StartError naming the
    files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        files = ", ".join(name for name in (ca, certificate, key) if name)
        raise StartError(f"cannot use {files} for TLS: {error}") from error
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


def end_of(certificate: str) -> datetime | None:
    """When the first certificate in PEM text expires; None if it does not say."""
    pem = _PEM.search(certificate)
    found = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(pem[0])) if pem else None
    if found is None:
        return None
    digits = found[1].decode()
    form = "%y%m%d%H%M%S" if len(digits) == 12 else "%Y%m%d%H%M%S"
    return datetime.strptime(digits, form).replace(tzinfo=timezone.utc)


def _warn_of_end(path: str) -> None:
    end = end_of(Path(path).read_text(encoding="ascii", errors="replace"))
    now = datetime.now(timezone.utc)
    if end is not None and end < now + SOON:
        verb = "has expired" if end < now else "expires"
        log.warning("the certificate in %s %s on %s", path, verb, f"{end:%Y-%m-%d %H:%M} UTC")
