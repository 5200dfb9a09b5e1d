"""What the blocking and the asyncio client have in common: whom they call.

It leaves it to the client how to connect.
"""

import functools
from collections.abc import Callable
from typing import Any

import grpc

from mindspore_serving.client.check import check_str, check_timeout, check_version
from mindspore_serving.client.messages import to_request
from mindspore_serving.client.tls import SSLConfig, credentials
from mindspore_serving.proto.ms_service_pb2_grpc import MSServiceStub

OPTIONS = tuple((f"grpc.max_{way}_message_length", 512 << 20) for way in ("send", "receive"))


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


class Caller:
    """One method of a servable at one address.  A subclass gives `_connect`."""

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
        check_str("address", address)
        check_str("servable_name", servable_name)
        check_str("method_name", method_name)
        check_version(version_number)
        check_timeout(timeout)
        self.address = address
        self.servable_name = servable_name
        self.method_name = method_name
        self.version_number = version_number
        self.timeout = timeout
        self._metadata = None if api_key is None else (("authorization", f"Bearer {api_key}"),)
        self.channel = self._connect(None if ssl_config is None else credentials(ssl_config))
        self.stub = MSServiceStub(self.channel)

    def _connect(self, security: grpc.ChannelCredentials | None) -> Any:
        """A channel to `self.address`."""
        raise NotImplementedError

    def _send(self, call: Callable[..., Any], instances: object, timeout: float | None) -> Any:
        """What `call`, of the stub, returns for a request; `timeout` as `infer` is given it."""
        names = (self.servable_name, self.method_name, self.version_number)
        request = to_request(*names, instances)
        check_timeout(timeout)
        limit = self.timeout if timeout is None else timeout
        return call(request, timeout=limit, metadata=self._metadata)
