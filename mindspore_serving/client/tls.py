"""The files of a client's TLS connection."""

from dataclasses import dataclass, fields
from pathlib import Path

import grpc

from mindspore_serving.client.check import check_str
from mindspore_serving.errors import InvalidInputs


@dataclass(frozen=True, slots=True)
class SSLConfig:
    """The files of a TLS connection, all in PEM.

    Args:
        certificate: the client's certificate chain, for servers that verify clients.
        private_key: its key; comes together with `certificate`.
        custom_ca: the authorities to trust in place of the default ones.

    Raises RuntimeError for a wrong argument; the files are read when a client is made.
    """

    certificate: str | None = None
    private_key: str | None = None
    custom_ca: str | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            path = getattr(self, one.name)
            if path is not None:
                check_str(one.name, path)
        if (self.certificate is None) != (self.private_key is None):
            raise InvalidInputs("The certificate and private_key should be passed at the same time")


def credentials(ssl_config: object) -> grpc.ChannelCredentials:
    """Raises RuntimeError if `ssl_config` is none, and OSError if a file cannot be read."""
    if not isinstance(ssl_config, SSLConfig):
        raise InvalidInputs(
            f"The type of ssl_config should be type of SSLConfig, but actually {type(ssl_config)}"
        )
    paths = (ssl_config.custom_ca, ssl_config.private_key, ssl_config.certificate)
    root, key, chain = (None if path is None else Path(path).read_bytes() for path in paths)
    return grpc.ssl_channel_credentials(root, key, chain)
