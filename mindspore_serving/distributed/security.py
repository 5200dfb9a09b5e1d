"""Between a worker and its agents: optional TLS, and an optional secret that is proved, never sent.

SERVING_DISTRIBUTED_TOKEN is the secret, SERVING_DISTRIBUTED_TOKEN_FILE a file with it.  Without
either it is empty: whoever reaches the port may join.

With SERVING_DISTRIBUTED_TLS_CERT and _KEY the worker listens with TLS only.  With _CA too it
demands certificates of agents, and of scripts that start them.  These use TLS when one of the
three is set: _CA is the authority that they trust in place of the system's.
"""

import hashlib
import hmac
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mindspore_serving import tls
from mindspore_serving.errors import StartError

CERTIFICATE = "SERVING_DISTRIBUTED_TLS_CERT"
KEY = "SERVING_DISTRIBUTED_TLS_KEY"
AUTHORITY = "SERVING_DISTRIBUTED_TLS_CA"
TOKEN, TOKEN_FILE = "SERVING_DISTRIBUTED_TOKEN", "SERVING_DISTRIBUTED_TOKEN_FILE"
NONCE = 32  # bytes that the worker has each peer prove its secret on


@dataclass(frozen=True, slots=True)
class _Files:
    """What `tls.to_context` takes."""

    certificate: str
    private_key: str
    custom_ca: str | None
    verify_client: bool


def of_worker(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """None without TLS.  Raises StartError if a file is missing or cannot be used."""
    certificate, key, authority = _read(environment)
    if certificate and key:
        context = tls.to_context(_Files(certificate, key, authority, authority is not None))
        context.options |= ssl.OP_NO_RENEGOTIATION
        return context
    if authority:
        text = f"{AUTHORITY} alone is for agents: the worker needs {CERTIFICATE} and {KEY} too"
        raise StartError(text)
    return None


def of_agent(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """None without TLS.  Raises StartError if a file is missing or cannot be used."""
    certificate, key, authority = _read(environment)
    if certificate or authority:
        return tls.to_client_context(authority, certificate, key)
    return None


def _read(environment: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """Paths of the certificate, its key and the authority, None for what is not set."""
    certificate, key, authority = (
        environment.get(name) or None for name in (CERTIFICATE, KEY, AUTHORITY)
    )
    if (certificate is None) != (key is None):
        missing = KEY if certificate else CERTIFICATE
        raise StartError(f"{missing} is missing: {CERTIFICATE} and {KEY} go together")
    return certificate, key, authority


def read_token(environment: Mapping[str, str]) -> bytes:
    """The secret; b"" if there is none.  Raises StartError if its file cannot be read."""
    if path := environment.get(TOKEN_FILE):
        try:
            token = Path(path).read_bytes().strip()
        except OSError as error:
            raise StartError(f"The file of {TOKEN_FILE} cannot be read: {error}") from error
        if not token:
            raise StartError(f"The file of {TOKEN_FILE}, '{path}', is empty")
        return token
    return environment.get(TOKEN, "").encode()


def prove(token: bytes, nonce: bytes) -> bytes:
    """What only a holder of `token` can answer to `nonce`."""
    return hmac.new(b"mindspore-serving agent " + token, nonce, hashlib.sha256).digest()


def is_proof(proof: bytes, token: bytes, nonce: bytes) -> bool:
    return hmac.compare_digest(proof, prove(token, nonce))
