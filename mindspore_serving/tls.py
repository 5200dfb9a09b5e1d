"""TLS certificates: files to an ssl context.  TLS 1.2 and newer only."""

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Protocol

from mindspore_serving import log
from mindspore_serving.errors import StartError, reason

_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
SOON = timedelta(days=14)
_PEM = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.S)
# Validity of a certificate in DER: a sequence of two times, with years of two or four digits.
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


@dataclass(frozen=True, slots=True)
class Pem:
    """Content of the files of a `Tls`; `roots` is None if clients need no certificate."""

    certificate: bytes
    private_key: bytes = field(repr=False)
    roots: bytes | None = None


class Certificates:
    """Certificates of a listener, for connections from now on."""

    __slots__ = ("_tls", "context", "pem")

    def __init__(self, tls: Tls, pem: Pem) -> None:
        self._tls = tls
        self.replace(pem)

    def replace(self, pem: Pem) -> None:
        """Use other certificates.

        Raises StartError naming a file that cannot be used; then nothing changes.
        """
        self.context = _to_context(self._tls, pem)
        self.pem = pem


def paths_of(tls: Tls) -> tuple[str, ...]:
    """Return the paths of the files that are read."""
    roots = (tls.custom_ca,) if tls.verify_client and tls.custom_ca else ()
    return (tls.certificate, tls.private_key, *roots)


def read(tls: Tls) -> Pem:
    """Read a certificate and its private key.

    A warning is logged if it expires within SOON. Raises StartError naming a file that cannot be
    used.
    """
    names = ("certificate_chain", "private_key", "root certificate")
    contents = []
    for name, path in zip(names, paths_of(tls), strict=False):
        try:
            contents.append(Path(path).read_bytes())
        except OSError as error:
            raise _unusable(name, path, reason(error)) from error
    pem = Pem(*contents)
    _to_context(tls, pem)
    _warn_of_end(tls.certificate, pem.certificate)
    return pem


def to_context(tls: Tls) -> ssl.SSLContext:
    """Return the context of a server; a warning is logged if the certificate expires within SOON.

    Raises StartError naming a file that cannot be used.
    """
    return _to_context(tls, read(tls))


def _to_context(tls: Tls, pem: Pem) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with _as_file(pem.certificate) as certificate, _as_file(pem.private_key) as key:
            # An empty password makes an encrypted key an error; without it OpenSSL would prompt.
            context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        if not _is_certificate(pem.certificate):
            text = f"expected a certificate in PEM ({_CERTIFICATE})"
            raise _unusable("certificate_chain", tls.certificate, text) from error
        raise _unusable("private_key", tls.private_key, _why_no_key(tls, pem, error)) from error
    if pem.roots is not None:
        assert tls.custom_ca is not None
        try:
            with _as_file(pem.roots) as roots:
                context.load_verify_locations(roots)
        except (OSError, ssl.SSLError) as error:
            text = f"expected certificates in PEM ({_CERTIFICATE})"
            raise _unusable("root certificate", tls.custom_ca, text) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Write `content` to a file in memory and yield its path.

    `ssl` reads keys from files only, and the file on disk may have changed.
    """
    with os.fdopen(os.memfd_create("pem"), "wb", buffering=0) as file:
        file.write(content)
        yield f"/proc/self/fd/{file.fileno()}"


def _unusable(which: str, path: str, text: str) -> StartError:
    return StartError(f"Serving Error: load {which} from {path} failed: {text}")


def _why_no_key(tls: Tls, pem: Pem, error: Exception) -> str:
    if "KEY_VALUES_MISMATCH" in str(error):
        return f"it is not the key of the certificate {tls.certificate}"
    if b"ENCRYPTED" in pem.private_key:
        return "it is encrypted: remove its password by `openssl pkey -in KEY -out NEW_KEY`"
    if b"PRIVATE KEY-----" not in pem.private_key:
        return "expected a private key in PEM (-----BEGIN PRIVATE KEY-----)"
    return str(error)


def to_client_context(ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    """Return the context of a client that trusts `ca`, or the system's authorities.

    Raises StartError naming the files that cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        # `ca` may be the server's own certificate, without the authority that signed it.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        if certificate:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        files = ", ".join(name for name in (ca, certificate, key) if name)
        raise StartError(f"cannot use {files} for TLS: {error}") from error
    return context


def to_group_context(certificate: bytes, private_key: bytes, *, accepts: bool) -> ssl.SSLContext:
    """Return the context of a member of a group that shares a certificate and its key, in PEM.

    Members trust this certificate alone, whatever their addresses; `accepts` is of those that
    accept connections.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if accepts else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with _as_file(certificate) as chain, _as_file(private_key) as key:
        context.load_cert_chain(chain, key, password="")
    context.load_verify_locations(cadata=certificate.decode())
    if accepts:
        context.num_tickets = 0  # no session is resumed
    return context


def make_group_certificate() -> tuple[bytes, bytes]:
    """Return a new self-signed certificate for `to_group_context`, and its private key, in PEM.

    Raises ModuleNotFoundError without the library `cryptography`.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ranks of one model")])
    now = datetime.now(timezone.utc)
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))  # clocks of machines differ
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(pem)
    return certificate, key.private_bytes(pem, kind, serialization.NoEncryption())


def _is_certificate(content: bytes) -> bool:
    try:
        with _as_file(content) as path:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ssl.SSLError):
        return False
    return True


def end_of(certificate: bytes) -> datetime | None:
    """Return when the first certificate in PEM text expires; None if that cannot be read."""
    pem = _PEM.search(certificate.decode("ascii", errors="replace"))
    validity = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(pem[0])) if pem else None
    if validity is None:
        return None
    digits = validity[1].decode()
    form = "%y%m%d%H%M%S" if len(digits) == 12 else "%Y%m%d%H%M%S"
    return datetime.strptime(digits, form).replace(tzinfo=timezone.utc)


def _warn_of_end(path: str, certificate: bytes) -> None:
    end = end_of(certificate)
    now = datetime.now(timezone.utc)
    if end is not None and end < now + SOON:
        verb = "has expired" if end < now else "expires"
        log.warning("the certificate in %s %s on %s", path, verb, f"{end:%Y-%m-%d %H:%M} UTC")
