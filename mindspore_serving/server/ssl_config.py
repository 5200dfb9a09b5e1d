"""`SSLConfig`: the certificates of a server.  Reads no file."""

from dataclasses import dataclass

from mindspore_serving.servable.check import check_bool, check_str


@dataclass(frozen=True, slots=True)
class SSLConfig:
    """TLS certificates of a server.

    Files that are replaced while the server runs are reloaded, for new connections.  A missing file
    is an error when the server starts (FileNotFoundError).

    Args:
        certificate: path of the server's certificate chain, PEM.
        private_key: path of its private key, PEM.
        custom_ca: path of the certificate of the authority that signs clients' certificates, PEM;
            ignored without `verify_client`.
        verify_client: whether clients must have a certificate.

    Raises:
        RuntimeError: an argument is invalid.
    """

    certificate: str
    private_key: str
    custom_ca: str | None = None
    verify_client: bool = False

    def __post_init__(self) -> None:
        check_str("certificate", self.certificate)
        check_str("private_key", self.private_key)
        if check_bool("verify_client", self.verify_client):
            check_str("custom_ca", self.custom_ca)
