"""Security between a worker and its agents: optional TLS, and an optional token.

SERVING_DISTRIBUTED_TOKEN is the token, SERVING_DISTRIBUTED_TOKEN_FILE a file with it.  Peers prove
that they know it and never send it.  Without a token any peer that reaches the port may join.

With SERVING_DISTRIBUTED_TLS_CERT and _KEY the worker listens with TLS only.  With _CA too it
requires certificates of agents, and of scripts that start them.  Agents and scripts use TLS if one
of the three is set; _CA is the certificate authority that they trust instead of the system's.
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
NONCE = 32  # bytes of the random number in a challenge


@dataclass(frozen=True, slots=True)
class _Files:
    """Arguments of `tls.to_context`."""

    certificate: str
    private_key: str
    custom_ca: str | None
    verify_client: bool


def of_worker(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the TLS context of a worker, None without TLS.

    Raises StartError if a file is missing or invalid.
    """
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
    """Return the TLS context of an agent or script, None without TLS.

    Raises StartError if a file is missing or invalid.
    """
    certificate, key, authority = _read(environment)
    if certificate or authority:
        return tls.to_client_context(authority, certificate, key)
    return None


def _read(environment: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """Return paths of the certificate, its key and the authority; None for those not set."""
    certificate, key, authority = (
        environment.get(name) or None for name in (CERTIFICATE, KEY, AUTHORITY)
    )
    if (certificate is None) != (key is None):
        missing = KEY if certificate else CERTIFICATE
        raise StartError(f"{missing} is missing: {CERTIFICATE} and {KEY} go together")
    return certificate, key, authority


def read_token(environment: Mapping[str, str]) -> bytes:
    """Return the token, b"" for none.  Raises StartError if its file cannot be read."""
    if path := environment.get(TOKEN_FILE):
        try:
            token = Path(path).read_bytes().strip()
        except OSError as error:
            raise StartError(f"cannot read the file of {TOKEN_FILE}: {error}") from error
        if not token:
            raise StartError(f"the file of {TOKEN_FILE}, '{path}', is empty")
        return token
    return environment.get(TOKEN, "").encode()


def prove(token: bytes, nonce: bytes) -> bytes:
    """Return the HMAC of `nonce` that proves knowledge of `token`."""
    return hmac.new(b"mindspore-serving agent " + token, nonce, hashlib.sha256).digest()


def is_proof(proof: bytes, token: bytes, nonce: bytes) -> bool:
    """Return whether `proof` was made from `token` and `nonce`, in constant time."""
    return hmac.compare_digest(proof, prove(token, nonce))
