"""Common parts of the blocking and the asyncio client: address, TLS, and the gRPC stub."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import grpc

from mindspore_serving.client.check import check_address, check_str, check_timeout, check_version
from mindspore_serving.client.messages import to_request
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.proto.ms_service_pb2 import PredictReply, PredictRequest
from mindspore_serving.tracing import user_spans


@dataclass(frozen=True, slots=True)
class SSLConfig:
    """PEM files of a TLS connection.

    Args:
        certificate: the client's certificate chain, for servers that verify clients.
        private_key: its key; required with `certificate`.
        custom_ca: the authorities to trust instead of the default ones.

    Raises RuntimeError for a wrong argument; the files are read when a client is created.
    """

    certificate: str | None = None
    private_key: str | None = None
    custom_ca: str | None = None

    def __post_init__(self) -> None:
        for file in fields(self):
            path = getattr(self, file.name)
            if path is not None:
                check_str(file.name, path)
        if (self.certificate is None) != (self.private_key is None):
            raise InvalidInputs("The certificate and private_key should be passed at the same time")


def credentials(ssl_config: object) -> grpc.ChannelCredentials:
    """Return gRPC credentials of an `SSLConfig`.

    Raises RuntimeError for another type, and OSError if a file cannot be read.
    """
    if not isinstance(ssl_config, SSLConfig):
        raise InvalidInputs(
            f"The type of ssl_config should be type of SSLConfig, but actually {type(ssl_config)}"
        )
    paths = (ssl_config.custom_ca, ssl_config.private_key, ssl_config.certificate)
    root, key, chain = (None if path is None else Path(path).read_bytes() for path in paths)
    return grpc.ssl_channel_credentials(root, key, chain)


OPTIONS = (
    *((f"grpc.max_{direction}_message_length", 512 << 20) for direction in ("send", "receive")),
    # A call that starts while its server stops would be retried without a pause, and use gigabytes
    # until its deadline (grpcio 1.85).
    ("grpc.enable_retries", 0),
)


def _accept_ip_and_port(init: Callable[..., None]) -> Callable[..., None]:
    """Let `init(self, address, ...)` also be called as in version 1.1, `(ip, port, ...)`."""

    @functools.wraps(init)
    def either(self: Any, *args: Any, **kwargs: Any) -> None:
        if "ip" in kwargs and "port" in kwargs:
            args = (f"{kwargs.pop('ip')}:{kwargs.pop('port')}", *args)
        elif len(args) > 1 and isinstance(args[1], int) and ":" not in str(args[0]):
            args = (f"{args[0]}:{args[1]}", *args[2:])
        elif args and "port" in kwargs:
            args = (f"{args[0]}:{kwargs.pop('port')}", *args[1:])
        init(self, *args, **kwargs)

    return either


class Stub:
    """Calls of MSService, with encoded requests or PredictRequest messages."""

    def __init__(self, channel: Any) -> None:
        service = "/mindspore.serving.proto.MSService"
        read = PredictReply.FromString
        self.Predict = channel.unary_unary(f"{service}/Predict", _encoded, read)
        self.PredictStream = channel.unary_stream(f"{service}/PredictStream", _encoded, read)


def _encoded(request: bytes | PredictRequest) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


class Caller:
    """Client of one method of a servable at an address, by `grpc` or, in a subclass, `grpc.aio`."""

    _library: ClassVar[Any] = grpc

    @_accept_ip_and_port
    def __init__(
        self,
        address: str,
        servable_name: str,
        method_name: str,
        version_number: int = 0,
        ssl_config: SSLConfig | None = None,
        *,
        timeout: float | None = None,
        api_key: str | None = None,
    ) -> None:
        check_address(address, has_tls=ssl_config is not None)
        check_str("servable_name", servable_name)
        check_str("method_name", method_name)
        check_version(version_number)
        check_timeout(timeout)
        self.address = address
        self.servable_name = servable_name
        self.method_name = method_name
        self.version_number = version_number
        self.timeout = timeout
        self._metadata = () if api_key is None else (("authorization", f"Bearer {api_key}"),)
        if ssl_config is None:
            self.channel = self._library.insecure_channel(address, options=OPTIONS)
        else:
            security = credentials(ssl_config)
            self.channel = self._library.secure_channel(address, security, options=OPTIONS)
        self.stub = Stub(self.channel)

    def _send(
        self,
        call: Callable[..., Any],
        instances: object,
        timeout: float | None,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> Any:
        """Send a request by `call` of the stub and return its result; `timeout` as for `infer`."""
        request = to_request(self.servable_name, self.method_name, self.version_number, instances)
        check_timeout(timeout)
        limit = self.timeout if timeout is None else timeout
        metadata = (*self._metadata, *metadata, *user_spans.headers().items())
        return call(request, timeout=limit, metadata=metadata or None)
