"""Optional TLS between a worker and its agents: certificates that the environment names.

With SERVING_DISTRIBUTED_TLS_CERT and _KEY the worker listens with TLS only.  With _CA too it
demands certificates of agents, and of scripts that start them.  These use TLS when one of the
three is set: _CA is the authority that they trust in place of the system's.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from mindspore_serving import tls
from mindspore_serving.errors import StartError

CERTIFICATE = "SERVING_DISTRIBUTED_TLS_CERT"
KEY = "SERVING_DISTRIBUTED_TLS_KEY"
AUTHORITY = "SERVING_DISTRIBUTED_TLS_CA"


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
