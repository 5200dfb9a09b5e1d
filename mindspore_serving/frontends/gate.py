"""Access control in front of every route: keys, their limits, and origins of web pages.

Knows no handler.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mindspore_serving.core.service import tenant_of_task
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.http.head import UPGRADE
from mindspore_serving.frontends.keys import TENANT, Keys, Tenant, fields_of
from mindspore_serving.frontends.origins import SAFE, OriginPolicy
from mindspore_serving.frontends.paths import PathNode
from mindspore_serving.frontends.protocols import PATHS
from mindspore_serving.frontends.refusals import limit_headers, refuse
from mindspore_serving.frontends.tenants.limits import LimitReached


class Gate:
    """ASGI middleware that refuses requests without a key, or from web pages of other sites.

    A refusal has the error format of the protocol of the path.
    """

    def __init__(self, app: ASGIApp, keys: Keys, origins: OriginPolicy | None) -> None:
        self._app = app
        self._keys = keys
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        node = PATHS.find(scope["path"])
        if node.is_open:
            await self._app(scope, receive, send)
            return
        if token := self._keys.token_in(fields_of(scope)):
            await self._keys.prepare(token)
        try:
            tenant = self._admit(scope, node)
        except ServingError as error:
            response = refuse(scope, error)
            if isinstance(error, LimitReached):
                response.headers.update(dict(limit_headers(scope, error.allowances)))
            await response(scope, receive, send)
            return
        if tenant is None:
            await self._app(scope, receive, send)
            return
        tenant_of_task.set(tenant.owner)
        scope[TENANT] = tenant  # not in a copy of the scope: the caller reads the route from it
        request = _AdmittedRequest(tenant, scope, send)
        try:
            await self._app(scope, receive, request.send)
        finally:
            request.release()

    def _admit(self, scope: Scope, node: PathNode) -> Tenant | None:
        """Return the tenant that sends the request, None without keys.  Raises ServingError."""
        fields = fields_of(scope)
        if self._origins is not None:
            is_upgrade = UPGRADE in scope.get("extensions", ())  # no page needs CORS to read it
            self._origins.check("CONNECT" if is_upgrade else scope["method"], fields)
            if scope["method"] not in SAFE and not node.accepts_text_plain:
                self._origins.check_type(fields)
        if not self._keys:
            return None
        return self._keys.find_in(fields).admit()


class _AdmittedRequest:
    """A request that counts for its tenant until its answer is complete.

    It is released before the end of the answer is sent, so that the client's next request is not
    refused.  The answer has the headers of the tenant's limits.
    """

    def __init__(self, tenant: Tenant, scope: Scope, send: Send) -> None:
        self._tenant: Tenant | None = tenant
        self._limited = tenant if tenant.key.limits else None
        self._scope = scope
        self._send = send

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        if message["type"] == "http.response.start":
            if self._limited is not None:
                headers = limit_headers(self._scope, self._limited.allowances())
                encoded = ((name.encode(), value.encode()) for name, value in headers)
                message = {**message, "headers": [*message.get("headers", ()), *encoded]}
        elif not message.get("more_body", False):
            self.release()
        await self._send(message)

    def release(self) -> None:
        """Count the request no longer."""
        tenant, self._tenant = self._tenant, None
        if tenant is not None:
            tenant.release()
