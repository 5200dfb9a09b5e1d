"""Access control in front of every route: keys, their limits, and origins of web pages.

Knows no handler.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from mindspore_serving.core.service import tenant_of_task
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.keys import TENANT, Keys, Tenant
from mindspore_serving.frontends.origins import SAFE, OriginPolicy
from mindspore_serving.frontends.paths import PathNode
from mindspore_serving.frontends.protocols import PATHS
from mindspore_serving.frontends.refusals import refuse


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
        try:
            tenant = self._admit(scope, node)
        except ServingError as error:
            await refuse(scope, error)(scope, receive, send)
            return
        if tenant is None:
            await self._app(scope, receive, send)
            return
        tenant_of_task.set(tenant.owner)
        scope[TENANT] = tenant  # not in a copy of the scope: the caller reads the route from it
        try:
            await self._app(scope, receive, send)
        finally:
            tenant.release()

    def _admit(self, scope: Scope, node: PathNode) -> Tenant | None:
        """Return the tenant that sends the request, None without keys.  Raises ServingError."""
        fields = dict(scope["headers"])
        if self._origins is not None:
            self._origins.check(scope["method"], fields)
            if scope["method"] not in SAFE and not node.accepts_text_plain:
                self._origins.check_type(fields)
        if not self._keys:
            return None
        return self._keys.find_in(fields).admit()
