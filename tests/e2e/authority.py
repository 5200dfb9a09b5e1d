"""Certificates for tests."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ADDRESSES = ("127.0.0.1", "127.0.0.2")


def key_usage(*, is_ca: bool) -> x509.KeyUsage:
    """What an authority's key, or another, may sign."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


class Authority:
    """Signs certificates for ADDRESSES; `ca` is its own."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = (
            directory,
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        )
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = self._save(f"{name}.pem", self._sign(self._name, self._key, is_ca=True))

    def issue(
        self,
        name: str,
        password: bytes | None = None,
        *,
        days: float = 100,
        hosts: Sequence[str] = (),
    ) -> tuple[str, str]:
        """Paths of certificate and private key; it expires in `days`, and is for `hosts`, if any,
        in place of ADDRESSES."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._save(f"{name}.crt", self._sign(subject, key, days=days, hosts=hosts))
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        lock = serialization.BestAvailableEncryption(password) if password else None
        private = key.private_bytes(encoding, form, lock or serialization.NoEncryption())
        return certificate, self._save(f"{name}.key", private)

    def _sign(
        self, subject, key, *, is_ca: bool = False, days: float = 100, hosts: Sequence[str] = ()
    ) -> bytes:
        named = [x509.DNSName(host) for host in hosts]
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            x509.CertificateBuilder(self._name, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=100))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(is_ca, None), critical=True)
            # Python 3.13 and later demand the identifiers and the usage of keys.
            .add_extension(key_usage(is_ca=is_ca), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.SubjectAlternativeName(
                    named or [x509.IPAddress(ipaddress.ip_address(one)) for one in ADDRESSES]
                ),
                critical=False,
            )
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _save(self, name: str, content: bytes) -> str:
        (self._directory / name).write_bytes(content)
        return str(self._directory / name)
