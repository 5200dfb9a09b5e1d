"""Options of a request that come from its headers and its API key: timeout and priority."""

from dataclasses import dataclass

from starlette.requests import Request

from mindspore_serving.frontends.keys import TENANT, Tenant
from mindspore_serving.frontends.mindspore.rest import to_timeout


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Timeout and priority of a request.

    `timeout` is in seconds; None is the server's limit.  `priority` is added to that of a request
    to a language model: lower runs first.
    """

    timeout: float | None = None
    priority: int = 0


def request_options_of(http: Request) -> RequestOptions:
    """Read the options of a request from X-Request-Timeout and its API key.

    Raises InvalidInputs.
    """
    header = http.headers.get("x-request-timeout")
    tenant: Tenant | None = http.scope.get(TENANT)
    return RequestOptions(
        timeout=to_timeout(header.encode("latin-1")) if header else None,
        priority=tenant.key.priority if tenant is not None else 0,
    )
