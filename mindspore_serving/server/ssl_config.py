"""`SSLConfig`: the certificates of a server.  Reads no file."""

from dataclasses import dataclass

from mindspore_serving.servable.check import check_bool, check_str


@dataclass(frozen=True, slots=True)
class SSLConfig:
    """TLS of a server; the arguments are paths of PEM files.

    `certificate` and `private_key` are the server's.  With `verify_client`, clients must show a
    certificate signed by `custom_ca`, which is ignored otherwise.  Raises RuntimeError for a wrong
    argument; a file that does not exist is found when the server starts (FileNotFoundError).
    Files that are replaced while the server runs are read anew, for connections from then on.
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
