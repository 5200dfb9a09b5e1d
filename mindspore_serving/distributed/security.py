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
class Files:
    """Paths of PEM files, "" where there is none; what `tls.to_context` takes."""

    certificate: str
    private_key: str
    custom_ca: str

    @property
    def verify_client(self) -> bool:
        return bool(self.custom_ca)

    @property
    def are_given(self) -> bool:
        return bool(self.certificate or self.private_key or self.custom_ca)


def read_files(environment: Mapping[str, str]) -> Files:
    """Raises StartError if there is a certificate without its key, or a key alone."""
    files = Files(*(environment.get(name, "") for name in (CERTIFICATE, KEY, AUTHORITY)))
    if bool(files.certificate) != bool(files.private_key):
        missing = KEY if files.certificate else CERTIFICATE
        raise StartError(f"{missing} is missing: {CERTIFICATE} and {KEY} go together")
    return files


def of_worker(files: Files) -> ssl.SSLContext | None:
    """None without TLS.  Raises StartError if a file is missing or cannot be used."""
    if not files.are_given:
        return None
    if not files.certificate:
        raise StartError(
            f"{AUTHORITY} alone is for agents: the worker needs {CERTIFICATE} and {KEY} too"
        )
    context = tls.to_context(files)
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def of_agent(files: Files) -> ssl.SSLContext | None:
    """None without TLS.  Raises InvalidInputs if a file cannot be used."""
    if not files.are_given:
        return None
    return tls.to_client_context(files.custom_ca or None, files.certificate, files.private_key)
